//! Programs that tests of any package start, each in a process group of its own: when its time is up, and after its end, all of the group ends. What it forked
//! would else keep the pipes open that are read to their end here.
#![allow(dead_code, reason = "each test program uses its part")]

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A program that runs. Killed with its group when dropped: a test that fails must not leave one behind that eats a core.
pub struct Running(Child);

impl Running {
    fn end(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
    }

    /// Whether it has ended. Nobody has heard of that yet, so its number is still its group's.
    fn has_ended(&self) -> bool {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(Pid::from_child(&self.0)), how).expect("wait").is_some()
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        let _ = self.0.wait();
    }
}

/// Starts a program with its streams as they were set.
pub fn spawn(command: &mut Command) -> Running {
    Running(command.process_group(0).spawn().unwrap_or_else(|e| panic!("{command:?}: {e} (ci/setup.sh installs what tests run)")))
}

/// Starts a program that says what it has to say to [`finish`].
pub fn start(command: &mut Command) -> Running {
    spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// Waits for its end, or panics with all output after `limit`.
pub fn finish(mut running: Running, limit: Duration) -> Output {
    // Who says more than a pipe holds waits until it is read.
    let streams = [reading(running.stdout.take()), reading(running.stderr.take())];
    let until = Instant::now() + limit;
    while !running.has_ended() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let late = !running.has_ended();
    running.end();
    let status = running.wait().expect("wait");
    let [stdout, stderr] = streams.map(read);
    let out = Output { status, stdout, stderr };
    assert!(!late, "not finished after {limit:?}:\n{}", text(&out));
    out
}

/// Runs to the end, or panics with all output after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    finish(start(command), limit)
}

fn reading(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes).expect("read"));
        bytes
    })
}

/// What was read, now that all those have ended who could say more.
fn read(thread: JoinHandle<Vec<u8>>) -> Vec<u8> {
    let until = Instant::now() + Duration::from_secs(20);
    while !thread.is_finished() {
        assert!(Instant::now() < until, "somebody has left the group, and keeps a pipe open");
        std::thread::sleep(Duration::from_millis(1));
    }
    thread.join().expect("read")
}

/// Both streams, for looking into and for messages.
pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}
