//! Who may read and write this process's memory where Yama restricts that (`prctl(2)`, `PR_SET_PTRACER`; Documentation/admin-guide/LSM/Yama.rst).
//!
//! With `ptrace_scope` 1 a process lets in its ancestors and, of all others, one process that it names, with all of that one's descendants.
//! Ranks are children of their launcher, so each names its parent, and all of them are let in, but nobody else of this user.

use rustix::process::{PTracer, Pid, getppid, set_ptracer};

/// Yama's setting; absent where there is no Yama.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Who is to be named. Nobody where that is not needed (0) or does not help (2, 3). Not process 1: an orphan has it for a parent, and all processes
/// that there are for its siblings.
fn to_name(scope: &str, parent: Option<Pid>) -> Option<Pid> {
    parent.filter(|parent| scope.trim() == "1" && *parent != Pid::INIT)
}

/// Lets the other children of this process's parent, and their descendants, read and write its memory, where Yama would not. The last call of a
/// process counts: who named somebody else before has named only the parent then.
pub fn let_siblings_in() {
    let scope = std::fs::read_to_string(SCOPE).unwrap_or_default();
    if let Some(parent) = to_name(&scope, getppid()) {
        // Where it fails, peers see a refusal, and take another way.
        let _ = set_ptracer(PTracer::ProcessID(parent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_named_only_where_that_helps() {
        let parent = Pid::from_raw(4711);
        assert_eq!(to_name("1\n", parent), parent);
        for (scope, parent) in
            [("0\n", parent), ("2\n", parent), ("3\n", parent), ("", parent), ("1\n", None), ("1\n", Some(Pid::INIT))]
        {
            assert_eq!(to_name(scope, parent), None, "{scope}");
        }
        let_siblings_in();
    }
}
