//! Which endpoints are of this process.

use super::name::Identity;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::LazyLock;

static ALL: LazyLock<Mutex<HashSet<Identity>>> = LazyLock::new(Mutex::default);

/// An endpoint of this process, as long as this is kept.
pub struct Here(Identity);

impl Here {
    /// Notes that it is.
    pub fn note(identity: Identity) -> Here {
        ALL.lock().insert(identity);
        Here(identity)
    }

    /// Whether an endpoint is of this process. (A forked child takes its parent's for its own.)
    pub fn is(identity: Identity) -> bool {
        ALL.lock().contains(&identity)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        ALL.lock().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::name::Name;

    #[test]
    fn who_is_noted_is_here() {
        let identity = |nonce| Name::new(nonce, 0, 1, None).identity().expect("an endpoint's");
        let [one, other] = [0x1234_5678_9abc, 0x1234_5678_9abd].map(identity);
        let note = Here::note(one);
        assert!(Here::is(one) && !Here::is(other));
        drop(note);
        assert!(!Here::is(one));
    }
}
