//! Processes that this one starts as copies of itself and talks to, line by line. They end when their input does.
//!
//! Two are started where two processes of a job are meant: siblings, as ranks are. A parent may do more to its child than ranks to each
//! other (Yama's `ptrace_scope` 1 lets it read the child's memory).

use crate::Failure;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
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

impl Partner {
    /// Starts this program in another role, with a library before all others if one is named.
    pub fn start(role: &'static str, preload: Option<&Path>) -> Result<Partner, Failure> {
        let program =
            std::env::current_exe().map_err(|e| format!("cannot find this program's own file ({e}); is /proc mounted?"))?;
        let mut command = Command::new(program);
        command.args(["partner", role]).stdin(Stdio::piped()).stdout(Stdio::piped());
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
        let stream = TcpStream::connect(to).map_err(fail)?;
        stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE))).map_err(fail)?;
        let mut partner = Partner { who: Who::Remote(BufReader::new(stream)), role: "measure at the other host" };
        match partner.ask(GREETING)? {
            said if said == GREETING => Ok(partner),
            said => {
                Err(format!("at {to} is not the same version of this program, or something else (it says `{said}`); {helps}"))
            }
        }
    }

    /// The other host's address, and ours as it sees us.
    pub fn addresses(&self) -> Option<[IpAddr; 2]> {
        let Who::Remote(stream) = &self.who else { return None };
        let (there, here) = (stream.get_ref().peer_addr().ok()?, stream.get_ref().local_addr().ok()?);
        Some([there, here].map(|address| address.ip().to_canonical()))
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
        let mut line = String::new();
        let read = match &mut self.who {
            Who::Child(_, out) => out.read_line(&mut line),
            Who::Remote(stream) => stream.read_line(&mut line),
        };
        match read {
            Ok(n) if n > 0 => Ok(line.trim().to_string()),
            _ => Err(self.gone()),
        }
    }

    /// Tells it something and returns its answer.
    pub fn ask(&mut self, line: &str) -> Result<String, Failure> {
        self.tell(line)?;
        self.hear()
    }

    fn gone(&mut self) -> Failure {
        let how = match &mut self.who {
            Who::Child(child, _) => child.wait().map_or_else(|e| e.to_string(), |status| status.to_string()),
            Who::Remote(_) => "its connection ended, or it did not answer".into(),
        };
        format!("the process that was to {} ended early ({how}); what it said on standard error is above", self.role)
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
