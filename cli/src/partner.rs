//! Processes that this one starts as copies of itself and talks to, line by line. They end when their input does.
//!
//! Two are started where two processes of a job are meant: siblings, as ranks are. A parent may do more to its child than ranks to each
//! other (Yama's `ptrace_scope` 1 lets it read the child's memory).

use crate::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustix::process::Signal;
use rustmx::sys::interfaces;
use rustmx::sys::tcp::scoped;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A process that does what it is told. A started one is killed and waited for when dropped.
pub(crate) struct Partner {
    who: Who,
    role: &'static str,
}

enum Who {
    Child(Child, BufReader<ChildStdout>),
    /// On another host, where somebody let it wait (`listen.rs`).
    Remote(BufReader<TcpStream>),
}

/// What is said first to a process that waits, so that neither is something else.
pub(crate) const GREETING: &str = concat!("rustmx measures ", env!("CARGO_PKG_VERSION"));

/// How long another host may need for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to reach another host, for each of its addresses, and to be greeted by it.
const REACHED: Duration = Duration::from_secs(10);

/// The longest line that another host may say, in bytes.
const LONGEST_LINE: u64 = 64 << 10;

/// Milliseconds until a host is gone that acknowledges nothing: while something waits for that, the kernel does not ask whether it is there.
const SILENT: u32 = 11_000;

/// What the caller says when it is through, so that its end is not taken for an accident.
pub(crate) const END: &str = "end";

/// A connection over which lines are said: they leave at once, and a host that is gone without a word is noticed in ten seconds or so.
pub(crate) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(sockopt::set_tcp_user_timeout(stream, SILENT)?)
}

/// The next line of another host, without its end; nothing if there is none, or one that is too long.
pub(crate) fn line_of(from: &mut impl BufRead, longest: u64) -> Option<String> {
    let mut line = String::new();
    let read = from.take(longest).read_line(&mut line);
    (read.is_ok() && line.pop() == Some('\n')).then_some(line)
}

/// Where another host waits, as it is written: `HOST:PORT`.
pub(crate) fn place(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    let whole = port.is_some_and(|port| port > 0) && (text.matches(':').count() == 1 || text.starts_with('['));
    whole
        .then(|| text.to_owned())
        .ok_or_else(|| "a host and a port, as in node2:7000, [2001:db8::2]:7000 or [fe80::2%eth0]:7000".into())
}

/// Its addresses. Behind a `%` stands the interface of a link-local one, by its number or, as people write it, by its name.
fn addresses_of(to: &str) -> std::io::Result<Vec<SocketAddr>> {
    let named = to.strip_prefix('[').and_then(|rest| rest.split_once('%')).and_then(|(ip, rest)| {
        let (name, port) = rest.split_once("]:")?;
        let named = name.parse::<u32>().is_err();
        named.then_some((IpAddr::V6(ip.parse().ok()?), name, port.parse().ok()?))
    });
    let Some((ip, name, port)) = named else { return Ok(to.to_socket_addrs()?.collect()) };
    match interfaces::all().iter().find(|i| i.name == name && i.scope_id != 0) {
        Some(interface) => Ok(vec![scoped(ip, interface.scope_id, port)]),
        None => Err(std::io::Error::other(format!("no interface {name} has a link-local address"))),
    }
}

fn reach(to: &str) -> std::io::Result<TcpStream> {
    let mut why = std::io::Error::other("it has no address");
    for address in addresses_of(to)? {
        match TcpStream::connect_timeout(&address, REACHED) {
            Ok(stream) => return Ok(stream),
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// Which of the links with such addresses is meant; 0: it is no link-local address.
pub(crate) fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

impl Partner {
    /// Starts this program in another role, with a library before all others if one is named, and with parameters (`NAME=value`) set.
    pub fn start(role: &'static str, preload: Option<&Path>, settings: &[String]) -> Result<Partner, Failure> {
        let program =
            std::env::current_exe().map_err(|e| format!("cannot find this program's own file ({e}); is /proc mounted?"))?;
        let mut command = Command::new(program);
        command.args(["partner", role]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(settings.iter().filter_map(|setting| setting.split_once('=')));
        if let Some(library) = preload {
            let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
            let separator = if others.is_empty() { "" } else { ":" };
            command.env("LD_PRELOAD", [library.as_os_str(), separator.as_ref(), &others].join("".as_ref()));
        }
        let mut child = command.spawn().map_err(|e| format!("cannot start a second process ({e}); see `ulimit -u`"))?;
        let out = child.stdout.take().ok_or("a started process has no output")?;
        Ok(Partner { who: Who::Child(child, BufReader::new(out)), role })
    }

    /// Calls one that waits on another host.
    pub fn call(to: &str) -> Result<Partner, Failure> {
        let helps = "start `rustmx compare --listen PORT` there, and let the port through the firewall";
        let fail = |e: std::io::Error| format!("nobody answers at {to} ({e}); {helps}");
        let stream = reach(to).map_err(fail)?;
        prepare(&stream).and_then(|()| stream.set_read_timeout(Some(REACHED))).map_err(fail)?;
        let mut partner = Partner { who: Who::Remote(BufReader::new(stream)), role: "second" };
        match partner.ask(GREETING) {
            Ok(said) if said == GREETING => {}
            Ok(said) => {
                let said: String = said.chars().take(80).collect();
                return Err(format!(
                    "at {to} is not the same version of this program, or something else (it says `{}`); {helps}",
                    said.escape_debug()
                ));
            }
            Err(_) => {
                return Err(format!(
                    "at {to} somebody listens, but does not answer: `rustmx compare --listen` serves one at a time; else {helps}"
                ));
            }
        }
        if let Who::Remote(stream) = &partner.who {
            stream.get_ref().set_read_timeout(Some(PATIENCE)).map_err(fail)?;
        }
        Ok(partner)
    }

    /// The other host's address, and ours as it sees us, each with the scope that a link-local one needs.
    pub fn addresses(&self) -> Option<[SocketAddr; 2]> {
        let Who::Remote(stream) = &self.who else { return None };
        let (there, here) = (stream.get_ref().peer_addr().ok()?, stream.get_ref().local_addr().ok()?);
        Some([there, here].map(|address| scoped(address.ip().to_canonical(), scope_of(address), address.port())))
    }

    /// One on another host need not wait any more. What it says to that is not waited for.
    pub fn end(&mut self) {
        if let Who::Remote(stream) = &mut self.who {
            let _ = stream.get_mut().write_all(format!("{END}\n").as_bytes());
        }
    }

    /// Tells it something.
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let line = format!("{line}\n");
        let said = match &mut self.who {
            Who::Child(child, _) => child.stdin.as_mut().map(|to| to.write_all(line.as_bytes()).and_then(|()| to.flush())),
            Who::Remote(stream) => Some(stream.get_mut().write_all(line.as_bytes())),
        };
        match said {
            Some(Ok(())) => Ok(()),
            _ => Err(self.gone()),
        }
    }

    /// The next line it says.
    pub fn hear(&mut self) -> Result<String, Failure> {
        let said = match &mut self.who {
            Who::Child(_, out) => line_of(out, u64::MAX),
            Who::Remote(stream) => line_of(stream, LONGEST_LINE),
        };
        said.map(|line| line.trim().to_string()).ok_or_else(|| self.gone())
    }

    /// Tells it something and returns its answer.
    pub fn ask(&mut self, line: &str) -> Result<String, Failure> {
        self.tell(line)?;
        self.hear()
    }

    /// The same, while another one does its part of it, or ends what it did before, and says nothing: if that one is lost, no
    /// answer may come.
    pub fn ask_beside(&mut self, line: &str, other: &mut Partner) -> Result<String, Failure> {
        let answer = match self.tell(line).and_then(|()| self.waits_in_vain(other)) {
            Ok(true) if !self.has_ended() => return Err(other.gone()),
            // The other one's end may follow from its own, and be heard of first.
            Ok(true) => Err(self.gone()),
            Ok(false) => self.hear(),
            Err(why) => Err(why),
        };
        // It may have noticed the other one's end before this process did.
        if answer.is_ok() || !other.has_ended() {
            return answer;
        }
        match (&mut self.who, &mut other.who) {
            (Who::Child(one, _), Who::Child(two, _)) => Err(format!(
                "the processes `{}` ({}) and `{}` ({}) ended early; what they said on standard error is above",
                self.role,
                how(one),
                other.role,
                how(two)
            )),
            _ => Err(other.gone()),
        }
    }

    /// Waits until it says something, or one of the two has ended. Whether only the other one has: an answer that is there
    /// counts, whatever became of that.
    fn waits_in_vain(&mut self, other: &Partner) -> Result<bool, Failure> {
        let (out, patience) = match &self.who {
            Who::Child(_, out) if out.buffer().is_empty() => (PollFd::new(out.get_ref(), PollFlags::IN), None),
            Who::Remote(stream) if stream.buffer().is_empty() => (PollFd::new(stream.get_ref(), PollFlags::IN), Some(PATIENCE)),
            _ => return Ok(false),
        };
        let patience = patience.map(|p| Timespec { tv_sec: p.as_secs() as i64, tv_nsec: 0 });
        let mut both = [out, other.until_end()];
        let ready = loop {
            if let Ok(ready) = poll(&mut both, patience.as_ref()) {
                break ready;
            }
        };
        let vain = both[0].revents().is_empty();
        if ready == 0 { Err(self.gone()) } else { Ok(vain) }
    }

    /// What is to be polled for its end. It says nothing now.
    fn until_end(&self) -> PollFd<'_> {
        match &self.who {
            // Of a pipe that is told to all who poll.
            Who::Child(_, out) => PollFd::new(out.get_ref(), PollFlags::empty()),
            Who::Remote(stream) => PollFd::new(stream.get_ref(), PollFlags::IN),
        }
    }

    /// Whether it has ended, or does in a moment.
    fn has_ended(&self) -> bool {
        let moment = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        matches!(poll(&mut [self.until_end()], Some(&moment)), Ok(1))
    }

    fn gone(&mut self) -> Failure {
        match &mut self.who {
            Who::Child(child, _) => {
                format!("the process `{}` ended early ({}); what it said on standard error is above", self.role, how(child))
            }
            Who::Remote(_) => {
                "the other host's process ended early, or its host is gone, or it did not answer; see what it says there".into()
            }
        }
    }
}

/// How a process ended that has, or is just about to.
fn how(child: &mut Child) -> String {
    match child.wait() {
        // It could not say anything itself.
        Ok(status) if status.signal() == Some(Signal::KILL.as_raw()) => {
            format!("{status}: somebody killed it, or the machine has too little memory")
        }
        Ok(status) => status.to_string(),
        Err(e) => e.to_string(),
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        if let Who::Child(child, _) = &mut self.who {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        for good in ["h2:7000", "192.0.2.1:7000", "[2001:db8::2]:7000", "[fe80::1%eth0]:1"] {
            assert_eq!(place(good).as_deref(), Ok(good));
        }
        for bad in ["h2", "h2:", ":7000", "h2:0", "h2:70000", "2001:db8::2", "2001:db8::2:7000", ""] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_of_strangers_end() {
        let mut said = &b"one\n\ntoo long a line\n"[..];
        assert_eq!((line_of(&mut said, 8), line_of(&mut said, 8)), (Some("one".into()), Some(String::new())));
        assert_eq!(line_of(&mut said, 8), None);
        assert_eq!((line_of(&mut &b"cut off"[..], 100), line_of(&mut &b"\xff\n"[..], 100)), (None, None));
    }

    #[test]
    fn an_address_of_one_link_names_its_interface() {
        let addresses = |to: &str| addresses_of(to).map_err(|why| why.to_string());
        assert_eq!(addresses("[::1]:7"), Ok(vec![scoped(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]), 0, 7)]));
        let why = addresses("[fe80::1%none]:7").expect_err("there is no such interface");
        assert!(why.contains("no interface none"), "{why}");
        for own in interfaces::all().iter().filter(|i| i.scope_id != 0) {
            for name in [own.name.clone(), own.scope_id.to_string()] {
                assert_eq!(addresses(&format!("[{}%{name}]:7", own.ip)), Ok(vec![scoped(own.ip, own.scope_id, 7)]));
            }
        }
    }

    /// A child of which a shell does the part.
    fn shell(role: &'static str, script: &str) -> Partner {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let out = child.stdout.take().expect("piped");
        Partner { who: Who::Child(child, BufReader::new(out)), role }
    }

    /// Who waits for an answer is told that the other one has ended, which is why there is none.
    #[test]
    fn the_end_of_either_is_an_answer() {
        const WAITS: &str = "read order; exec sleep 30";
        for roles in [["first", "second"], ["second", "first"]] {
            let (mut asked, mut other) = (shell(roles[0], WAITS), shell(roles[1], "kill -9 $$"));
            let why = asked.ask_beside("cell", &mut other).expect_err("nobody answers");
            assert!(why.starts_with(&format!("the process `{}` ended early (signal: 9 ", roles[1])), "{why}");
            let (mut asked, mut other) = (shell(roles[0], "read order; exit 3"), shell(roles[1], WAITS));
            let why = asked.ask_beside("cell", &mut other).expect_err("it has ended");
            assert!(why.starts_with(&format!("the process `{}` ended early (exit status: 3)", roles[0])), "{why}");
        }
    }

    /// Which one ended because of the other one is left to the reader.
    #[test]
    fn both_are_named_if_both_end() {
        let (mut first, mut second) = (shell("first", "exit 3"), shell("second", "kill -9 $$"));
        second.has_ended();
        first.has_ended();
        let why = first.ask_beside("cell", &mut second).expect_err("both have ended");
        assert!(why.starts_with("the processes `first` (exit status: 3) and `second` (signal: 9 "), "{why}");
    }

    #[test]
    fn an_answer_counts_that_came_before_the_other_ones_end() {
        let (mut asked, mut other) = (shell("first", "echo 42; read order; exec sleep 30"), shell("second", "read order"));
        let Who::Child(_, out) = &asked.who else { panic!("a child") };
        poll(&mut [PollFd::new(out.get_ref(), PollFlags::IN)], None).expect("it says something");
        other.tell("end").expect("it listens");
        assert!(other.has_ended());
        assert_eq!(asked.ask_beside("cell", &mut other).as_deref(), Ok("42"));
    }
}
