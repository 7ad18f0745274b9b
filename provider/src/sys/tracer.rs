//! Who may read and write this process's memory where Yama restricts that (`prctl(2)`, `PR_SET_PTRACER`; Documentation/admin-guide/LSM/Yama.rst).
//!
//! With `ptrace_scope` 1 a process lets in its ancestors and, of all others, one process that it names, with all of that one's descendants.
//! Ranks are children of their launcher, so each names its parent, and all of them are let in, but nobody else of this user. Only if the user asks for
//! that (`FI_RUSTMX_YAMA=any`) everybody is.

use rustix::process::{PTracer, Pid, set_ptracer};
use std::os::unix::process::parent_id;

/// Yama's setting; absent where there is no Yama.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// What it is set to; `None`: no Yama.
pub(super) fn scope() -> Option<u8> {
    std::fs::read_to_string(SCOPE).ok()?.trim().parse().ok()
}

/// Whom the user wants to let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetIn {
    /// The parent and all of its children.
    Launcher,
    /// Every process of this user.
    Any,
    /// Nobody further.
    Nobody,
}

/// Who is to be named. Nobody where that is not needed (0) or does not help (2, 3). Of itself not process 1: an orphan has it for a parent, and all
/// processes that there are for its siblings.
fn to_name(who: LetIn, scope: &str, parent: Option<Pid>) -> Option<PTracer> {
    match who {
        _ if scope.trim() != "1" => None,
        LetIn::Launcher => parent.filter(|parent| *parent != Pid::INIT).map(PTracer::ProcessID),
        LetIn::Any => Some(PTracer::Any),
        LetIn::Nobody => None,
    }
}

/// Lets others read and write this process's memory, where Yama would not. The last call of a process counts: who named somebody else before has
/// named only this one then.
pub fn let_in(who: LetIn) {
    let scope = std::fs::read_to_string(SCOPE).unwrap_or_default();
    if let Some(tracer) = to_name(who, &scope, Pid::from_raw(parent_id() as i32)) {
        // Where it fails, peers see a refusal, and take another way.
        let _ = set_ptracer(tracer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_is_named_only_where_that_helps() {
        let (parent, named) = (Pid::from_raw(4711), |who, scope, parent| to_name(who, scope, parent).map(|t| format!("{t:?}")));
        assert_eq!(named(LetIn::Launcher, "1\n", parent), parent.map(|p| format!("{:?}", PTracer::ProcessID(p))));
        assert_eq!(named(LetIn::Any, "1\n", Some(Pid::INIT)), Some(format!("{:?}", PTracer::Any)));
        for (scope, parent) in [("1\n", None), ("1\n", Some(Pid::INIT))] {
            assert_eq!(named(LetIn::Launcher, scope, parent), None, "{scope}");
        }
        assert_eq!(named(LetIn::Nobody, "1\n", parent), None);
        for scope in ["0\n", "2\n", "3\n", ""] {
            for who in [LetIn::Launcher, LetIn::Any] {
                assert_eq!(named(who, scope, parent), None, "{scope}");
            }
        }
        for who in [LetIn::Nobody, LetIn::Launcher, LetIn::Any] {
            let_in(who);
        }
    }
}
