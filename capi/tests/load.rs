//! Stock libfabric loads the library: its tools list it, talk over it, and show its log and its parameters.

mod support;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{provider_dir, run, stock, text};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn fi_info_lists_exactly_one_entry() {
    let out = run(stock("fi_info").args(["-p", "rustmx"]), LIMIT);
    let shown = text(&out);
    assert!(out.status.success(), "{shown}");
    assert_eq!(shown.matches("provider: ").count(), 1, "{shown}");
    for line in
        ["provider: rustmx\n", "fabric: rustmx\n", "domain: rustmx\n", "type: FI_EP_RDM\n", "protocol: Provider specific\n"]
    {
        assert!(shown.contains(line), "{line:?} in\n{shown}");
    }
}

#[test]
fn no_utility_provider_sits_on_it() {
    // Without a filter every provider of this libfabric answers; ours must do so once, under its own name only.
    let out = run(stock("fi_info").env_remove("FI_PROVIDER"), LIMIT);
    let shown = text(&out);
    assert_eq!(shown.lines().filter(|l| l.starts_with("provider: rustmx")).count(), 1, "{shown}");
    assert!(!shown.contains(";rustmx") && !shown.contains("rustmx;"), "{shown}");
    // What it does not offer, it does not list.
    for hint in [["-t", "FI_EP_MSG"], ["-t", "FI_EP_DGRAM"], ["-c", "FI_HMEM"], ["-a", "FI_SOCKADDR_IN"]] {
        let out = run(stock("fi_info").args(["-p", "rustmx"]).args(hint), LIMIT);
        assert!(!out.status.success() && text(&out).contains("-61"), "{hint:?}: {}", text(&out));
    }
}

#[test]
fn parameters_are_listed() {
    let shown = text(&run(stock("fi_info").arg("-e"), LIMIT));
    for p in rustmx::config::PARAMS {
        assert!(shown.contains(&format!("# {}: String", p.env())), "{} in\n{shown}", p.env());
        assert!(shown.contains(p.help.trim_end_matches('.')), "{}", p.help);
    }
}

#[test]
fn mistakes_in_variables_are_told_once() {
    let quiet = text(&run(stock("fi_info").args(["-p", "rustmx"]).env("FI_RUSTMX_EAGER_MAX", "2k"), LIMIT));
    assert!(!quiet.contains("FI_RUSTMX"), "{quiet}");
    let mistaken = || {
        let mut c = stock("fi_info");
        c.args(["-p", "rustmx"])
            .env("FI_RUSTMX_EAGER_MXA", "2k")
            .env("FI_RUSTMX_RING_SIZE", "7")
            .env("FI_RUSTMX_PROTOCOL", "steam,eager:0-1m");
        c
    };
    let out = run(&mut mistaken(), LIMIT);
    let complaint = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(
        complaint.contains("did you mean FI_RUSTMX_EAGER_MAX?") && complaint.contains("FI_RUSTMX_RING_SIZE=7"),
        "{complaint}"
    );
    assert!(
        complaint.contains("did you mean stream?") && complaint.contains("`eager:0-1m`: eager carries at most"),
        "{complaint}"
    );
    // Where the log is shown, it is there and not on a line of its own.
    let logged = text(&run(mistaken().env("FI_LOG_LEVEL", "warn").env("FI_LOG_PROV", "rustmx"), LIMIT));
    assert!(logged.contains("did you mean FI_RUSTMX_EAGER_MAX?") && !logged.contains("\nrustmx: "), "{logged}");
}

/// Processes of a job share a standard error: what one says is one write, or their lines mix.
#[test]
fn a_line_is_written_at_once() {
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    ours.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut command = stock("fi_info");
    command.args(["-p", "rustmx"]).env("FI_RUSTMX_EAGER_MXA", "2k").stdout(Stdio::null());
    let mut child = command.stderr(OwnedFd::from(theirs)).spawn().expect("fi_info");
    drop(command);
    let mut packet = [0; 4096];
    let n = ours.recv(&mut packet).expect("a write of it");
    let said = String::from_utf8_lossy(&packet[..n]);
    assert!(said.starts_with("rustmx: ") && said.ends_with('\n') && said.contains("did you mean"), "{said:?}");
    assert!(child.wait().expect("wait").success());
}

#[test]
fn the_log_speaks_through_libfabric() {
    let shown = text(&run(stock("fi_info").args(["-p", "rustmx"]).env("FI_LOG_LEVEL", "info").env("FI_RUSTMX_SPIN", "7"), LIMIT));
    let ours = |what: &str| shown.lines().any(|l| l.contains(":rustmx:core:") && l.contains(what));
    assert!(ours("loaded") && ours("FI_RUSTMX_SPIN=7"), "{shown}");
    let shown = text(&run(stock("fi_info").args(["-p", "rustmx", "-c", "FI_HMEM"]).env("FI_LOG_LEVEL", "info"), LIMIT));
    assert!(shown.contains("not offered: a capability"), "{shown}");
}

/// A port that is given to nobody else while what is returned is there, which does not listen: a listener that was closed lives on for a moment in a child that
/// another test starts just then.
fn free_port() -> (OwnedFd, u16) {
    let fd = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("socket");
    sockopt::set_socket_reuseaddr(&fd, true).expect("option");
    bind(&fd, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let at: SocketAddr = getsockname(&fd).expect("its name").try_into().expect("an address");
    (fd, at.port())
}

#[test]
fn pingpong_in_both_modes() {
    for mode in ["msg", "tagged"] {
        let pingpong = |port_option: &str, port: u16| {
            let mut c = stock("fi_pingpong");
            c.args(["-p", "rustmx", "-e", "rdm", "-m", mode, "-c", "-S", "all", "-I", "20", port_option, &port.to_string()]);
            c
        };
        // The control connection's port.
        let (_kept, port) = free_port();
        let server = support::start(&mut pingpong("-B", port));
        // The client does not retry: it may call only once somebody listens (a probing connection would be taken for it).
        let listening = format!(":{port:04X} 00000000:0000 0A");
        let until = std::time::Instant::now() + LIMIT;
        while !std::fs::read_to_string("/proc/net/tcp").expect("/proc").contains(&listening) {
            assert!(std::time::Instant::now() < until, "the server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let client = run(pingpong("-P", port).arg("127.0.0.1"), LIMIT);
        let server = support::finish(server, LIMIT);
        for out in [&client, &server] {
            let shown = text(out);
            assert!(out.status.success() && !shown.contains("error"), "{mode}:\n{}\n{}", text(&client), text(&server));
            assert!(shown.lines().any(|l| l.starts_with("1m")), "{mode}:\n{shown}");
        }
    }
}

/// Contract 2.5: an undefined `fi_*` symbol either does not resolve (wheels open libfabric privately) or binds to the wrong version.
#[test]
fn nothing_of_libfabric_is_imported() {
    let library = provider_dir().join("librustmx_fi.so");
    let shown = |program: &str, args: &[&str]| text(&run(Command::new(program).args(args).arg(&library), LIMIT));
    let symbols = shown("nm", &["-D"]);
    assert!(symbols.lines().all(|l| !l.contains(" U fi_")), "{symbols}");
    let exported: Vec<_> = symbols.lines().filter(|l| l.contains(" T ")).collect();
    assert!(exported.len() == 1 && exported[0].ends_with(" T fi_prov_ini"), "{exported:?}");
    let dynamic = shown("readelf", &["-d"]);
    assert!(!dynamic.contains("libfabric") && dynamic.contains("NODELETE"), "{dynamic}");
}

/// What a program leaves behind keeps nobody waiting, neither after its end nor when its time is up.
#[test]
fn a_time_limit_holds() {
    let begun = Instant::now();
    let script = |script: &str, limit| run(Command::new("sh").args(["-c", script]), limit);
    assert_eq!(text(&script("sleep 100 & echo said", Duration::from_secs(50))), "said\n");
    let hangs = || script("sleep 100 & echo said; sleep 100", Duration::from_millis(500));
    let why = std::panic::catch_unwind(hangs).expect_err("it hangs");
    let why = why.downcast_ref::<String>().expect("words");
    assert!(why.contains("not finished after 500ms") && why.ends_with("said\n"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}
