//! Copies of the test program in other roles: a test that is run again with `RUSTMX_TEST_ROLE` set.
//!
//! The copy says what it has to say in lines `@word…` on its standard output (the harness writes there, too), and is told things on its
//! standard input. It dies with its parent: end-of-file on its input ends it.

use super::Deadline;
use super::reachable::{Reachable, reachable};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const ROLE: &str = "RUSTMX_TEST_ROLE";

/// The role that this process was started in; `None` in the test program itself.
pub fn role() -> Option<Vec<String>> {
    let words = std::env::var(ROLE).ok()?;
    Some(words.split_whitespace().map(String::from).collect())
}

/// Says something to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n@{line}").and_then(|()| out.flush());
}

/// A line from the parent; ends the process if the parent is gone.
pub fn hear() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(n) if n > 0 => line.trim().to_string(),
        _ => std::process::exit(0),
    }
}

/// Ends this process when the parent ends or closes our input.
pub fn follow_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// A copy of the test program. Killed when dropped.
pub struct Copy {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// What runs `test` of this test program in another process, in the role `words`.
pub fn command(test: &str, words: &str) -> Command {
    command_of(&std::env::current_exe().expect("own path"), test, words)
}

/// The same as another user; what comes with it is to be kept as long as that may start anything.
#[track_caller]
pub fn command_by(user: Option<u32>, test: &str, words: &str) -> (Command, Option<Reachable>) {
    let Some(user) = user else { return (command(test, words), None) };
    let program = reachable(&std::env::current_exe().expect("own path"));
    let mut command = command_of(&program, test, words);
    command.uid(user).gid(user);
    (command, Some(program))
}

fn command_of(program: &Path, test: &str, words: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, words);
    command
}

/// Runs `test` of this test program in another process, in the role `words`.
pub fn copy(test: &str, words: &str) -> Copy {
    spawn(&mut command(test, words))
}

/// Runs what is a [`command`] in the end.
pub fn spawn(command: &mut Command) -> Copy {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("spawn");
    let (tx, lines) = channel();
    let out = BufReader::new(child.stdout.take().expect("stdout"));
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if let Some(said) = line.strip_prefix('@') {
                let _ = tx.send(said.to_string());
            }
        }
    });
    Copy { stdin: child.stdin.take(), child, lines }
}

impl Copy {
    /// The next line that it says.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        self.lines.recv_timeout(Duration::from_secs(20)).expect("a line from the other process")
    }

    /// What it said meanwhile, if anything.
    pub fn heard(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    pub fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The last thing that it said, once it has ended.
    pub fn heard_last(&mut self) -> Option<String> {
        let mut last = None;
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(20)) {
            last = Some(line);
        }
        last
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        self.ended_within(20)
    }

    /// The same, so many seconds.
    #[track_caller]
    pub fn ended_within(&mut self, seconds: u64) -> ExitStatus {
        let until = Deadline::new(seconds);
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            until.check(|| "the other process does not end".into());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.kill();
    }
}

/// From here on the kernel treats this thread as any other user's, even if it is root's: who may trace everybody is refused nothing.
pub fn give_up_tracing() {
    let mut can = rustix::thread::capabilities(None).expect("capabilities");
    can.effective.remove(rustix::thread::CapabilitySet::SYS_PTRACE);
    rustix::thread::set_capabilities(None, can).expect("one may always have less");
}

/// From here on the kernel lets no other user's process reach this one's memory, nor one that gave up [tracing](give_up_tracing).
pub fn keep_out() {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("a process may always do that");
}

/// Allocators beside the C library's, to be preloaded: Debian's `libjemalloc2` and `libtcmalloc-minimal4`.
///
/// # Panics
/// If one is not installed: a test that left it out would have tried nothing.
#[track_caller]
pub fn allocators() -> [PathBuf; 2] {
    let arch = std::env::consts::ARCH;
    let places = [format!("/usr/lib/{arch}-linux-gnu"), "/usr/lib64".into(), "/usr/lib".into()];
    ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"].map(|name| {
        let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
        found.unwrap_or_else(|| {
            panic!("{name} is not installed: ci/setup.sh, or apt-get install libjemalloc2 libtcmalloc-minimal4")
        })
    })
}

/// Tells what a torture test counted, as a line of JSON, if somebody wants to know (`mpi-tests/papers/torture.sh`).
pub fn tell_counts(test: &str, preload: Option<&Path>, monitored: bool, [rounds, checked, wrong]: [u64; 3]) {
    if std::env::var_os("RUSTMX_TEST_COUNTS").is_none() {
        return;
    }
    let allocator = preload.and_then(Path::file_name).map_or("libc".into(), |name| name.to_string_lossy());
    let monitor = if monitored { "on" } else { "off" };
    // The harness has begun a line.
    println!(
        "\n{{\"test\": \"{test}\", \"allocator\": \"{allocator}\", \"monitor\": \"{monitor}\", \"rounds\": {rounds}, \
         \"checked\": {checked}, \"wrong\": {wrong}}}"
    );
}

/// Runs `body` alone in a process of its own, as `test` of this test program (what it counts belongs to the whole process).
#[track_caller]
pub fn alone(test: &str, body: impl FnOnce()) {
    if role().is_some() {
        body();
        say("done");
        return;
    }
    let mut copy = copy(test, "alone");
    let mut said = None;
    let status = loop {
        said = said.or(copy.heard());
        if let Some(status) = copy.child.try_wait().expect("wait") {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.success(), "{test} failed in its own process: {status}");
    let said = said.or_else(|| copy.lines.recv_timeout(Duration::from_secs(1)).ok());
    assert_eq!(said.as_deref(), Some("done"), "{test} did not run");
}
