//! Processes that this one starts as copies of itself and talks to, line by line. They end when their input does.
//!
//! Two are started where two processes of a job are meant: siblings, as ranks are. A parent may do more to its child than ranks to each
//! other (Yama's `ptrace_scope` 1 lets it read the child's memory).

use crate::Failure;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A started process. Killed and waited for when dropped.
pub(crate) struct Partner {
    child: Child,
    out: BufReader<ChildStdout>,
    role: &'static str,
}

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
        Ok(Partner { child, out: BufReader::new(out), role })
    }

    /// Tells it something.
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let said = self.child.stdin.as_mut().map(|to| writeln!(to, "{line}").and_then(|()| to.flush()));
        match said {
            Some(Ok(())) => Ok(()),
            _ => Err(self.gone()),
        }
    }

    /// The next line it says.
    pub fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.out.read_line(&mut line) {
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
        let how = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        format!("the process that was to {} ended early ({how}); what it said on standard error is above", self.role)
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
