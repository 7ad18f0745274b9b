//! Whether ranks outnumber the cores they share, so that an idle poll had better give its core to somebody else.
//!
//! Counted are this process and the local endpoints it knows of. A peer whose cores are known (from its hello) counts if they
//! overlap ours; one that has not said hello may run anywhere. Ranks bound to a core each are no crowd, however
//! many there are; two on the same core are.

use crate::config::Config;
use crate::sys::cpu::{self, CoreMask, MASK_WORDS};
use core::cmp::Ordering;

/// When a waiting process gives its core to others, as the user wants it.
#[derive(Clone, Copy)]
pub(crate) enum Yields {
    /// When ranks outnumber cores.
    WhenCrowded,
    Never,
    Always,
}

impl Yields {
    pub fn of(config: &Config) -> Yields {
        match config.yield_when_idle {
            1 => Yields::Never,
            2 => Yields::Always,
            _ => Yields::WhenCrowded,
        }
    }

    /// Whether it does at the moment.
    pub fn now(self, crowded: impl FnOnce() -> bool) -> bool {
        match self {
            Yields::WhenCrowded => crowded(),
            Yields::Never => false,
            Yields::Always => true,
        }
    }
}

/// The census of one endpoint.
#[derive(Default)]
pub(super) struct Crowd {
    mine: CoreMask,
    quota: Option<u32>,
    online: u32,
    /// Cores of connected peers.
    masks: Vec<(crate::types::PeerId, CoreMask)>,
    /// Local endpoints named by the address vector, this one included.
    named: usize,
    crowded: bool,
    roomy: bool,
}

impl Crowd {
    pub fn new(mine: CoreMask) -> Crowd {
        Crowd { mine, quota: cpu::quota(), online: cpu::online(), named: 1, ..Crowd::default() }
    }

    /// Cores that this process tells its peers.
    pub fn own_cores(&self) -> CoreMask {
        self.mine
    }

    pub fn joined(&mut self, peer: crate::types::PeerId, cores: CoreMask) {
        self.left(peer);
        self.masks.push((peer, cores));
        self.count();
    }

    pub fn left(&mut self, peer: crate::types::PeerId) {
        self.masks.retain(|(p, _)| *p != peer);
        self.count();
    }

    pub fn named(&mut self, endpoints: usize) {
        self.named = endpoints;
        self.count();
    }

    /// Local endpoints that the address vector names, except this one.
    pub fn others(&self) -> usize {
        self.named.saturating_sub(1)
    }

    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Whether a thread of this process may run on a core that no rank needs, as far as ranks tell: what threads they have is not known.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.roomy
    }

    fn count(&mut self) {
        let masks = self.masks.iter().map(|(_, m)| m);
        let load = load(&self.mine, masks, self.named, self.online, self.quota);
        self.crowded = load == Ordering::Greater;
        self.roomy = load == Ordering::Less && cpu::count(&self.mine) > 1;
    }
}

/// The rule: ranks against the cores they share. `named` counts local endpoints, ourselves included; those without a known mask may run on any of `online` cores.
fn load<'a>(
    mine: &CoreMask,
    peers: impl Iterator<Item = &'a CoreMask>,
    named: usize,
    online: u32,
    quota: Option<u32>,
) -> Ordering {
    let (mut known, mut sharing, mut union) = (1, 1, *mine);
    for mask in peers {
        known += 1;
        if (0..MASK_WORDS).any(|i| mask[i] & mine[i] != 0) {
            sharing += 1;
            for i in 0..MASK_WORDS {
                union[i] |= mask[i];
            }
        }
    }
    let strangers = named.saturating_sub(known);
    let mut cores = cpu::count(&union);
    if strangers > 0 {
        cores = cores.max(online);
    }
    if let Some(quota) = quota {
        cores = cores.min(quota);
    }
    (sharing + strangers).cmp(&(cores as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(cores: &[usize]) -> CoreMask {
        let mut m = [0; MASK_WORDS];
        for c in cores {
            m[c / 64] |= 1 << (c % 64);
        }
        m
    }

    #[test]
    fn the_rule() {
        let both = mask(&[0, 1]);
        let crowded = |mine: &CoreMask, peers: core::slice::Iter<'_, CoreMask>, named, online, quota| {
            load(mine, peers, named, online, quota) == Ordering::Greater
        };
        let rule = |mine: &CoreMask, peers: &[CoreMask], named, quota| crowded(mine, peers.iter(), named, 2, quota);
        assert!(!rule(&both, &[], 1, None), "alone");
        assert!(!rule(&both, &[both], 2, None), "two on two");
        assert!(rule(&both, &[both, both], 3, None), "three on two");
        assert!(rule(&both, &[], 8, None), "eight named, none met");
        assert!(!rule(&mask(&[0]), &[mask(&[1])], 2, None), "bound to a core each");
        assert!(rule(&mask(&[0]), &[mask(&[0])], 2, None), "bound to the same core");
        assert!(rule(&both, &[both], 2, Some(1)), "a quota of one core");
        let eight: Vec<CoreMask> = (1..8).map(|c| mask(&[c])).collect();
        assert!(!crowded(&mask(&[0]), eight.iter(), 8, 8, None), "eight bound on eight");
        assert!(crowded(&mask(&[0]), eight.iter(), 20, 8, None), "twelve more somewhere on the eight");
    }

    #[test]
    fn room_for_a_thread_more() {
        let room = |mine: &[usize], peers: &[&[usize]], quota| {
            let mut crowd = Crowd { mine: mask(mine), quota, online: 4, named: 1, ..Crowd::default() };
            for (id, cores) in (0..).zip(peers) {
                crowd.joined(crate::types::PeerId(id), mask(cores));
            }
            crowd.named(1 + peers.len());
            crowd.has_room()
        };
        assert!(room(&[0, 1, 2, 3], &[&[0, 1, 2, 3], &[0, 1, 2, 3]], None), "three on four");
        assert!(!room(&[0, 1], &[&[0, 1]], None), "two on two");
        assert!(!room(&[0], &[&[1]], None), "bound to a core each, others free: a thread of ours may not run there");
        assert!(!room(&[0], &[&[0, 1, 2]], None), "the other may, we may not");
        assert!(room(&[0, 1], &[&[2, 3]], None), "two cores each");
        assert!(!room(&[0, 1, 2, 3], &[&[0, 1, 2, 3]], Some(2)), "a quota");
    }
}
