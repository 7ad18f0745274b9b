//! The third user of the cache's budget: what this process has mapped of its peers' memory. The key is an address space and a number in it; what becomes of
//! the memory there its owner says (`docs/adr/0017-lending.md`), so nothing is watched. What is given up for want of room stays known, and is mapped again when
//! a message names it.

use super::ranges::Budget;

/// A mapping that is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached<K> {
    /// Whose memory, and which.
    pub key: K,
    /// Bytes of addresses.
    pub bytes: usize,
    /// When it was used last.
    pub used: u64,
    /// A message that is under way needs it.
    pub busy: bool,
}

/// Which mappings must go so that the rest is within the budget: those not used for longest first, none that is busy. What is busy stays, though it be too much.
pub fn excess<K: Copy>(mut all: Vec<Attached<K>>, budget: Budget) -> Vec<K> {
    let (mut count, mut bytes) = (all.len(), all.iter().fold(0usize, |sum, a| sum.saturating_add(a.bytes)));
    all.retain(|a| !a.busy);
    all.sort_unstable_by_key(|a| a.used);
    let mut out = Vec::new();
    for a in all {
        if count <= budget.count && bytes <= budget.bytes {
            break;
        }
        (count, bytes) = (count - 1, bytes - a.bytes);
        out.push(a.key);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a list in the order of use, from which the first that may go is taken until the rest fits.
        #[test]
        fn agrees_with_a_naive_list(
            all in proptest::collection::vec((1usize..50, any::<bool>()), 0..30), swaps in proptest::collection::vec((0usize..30, 0usize..30), 0..30),
            count in 0usize..20, bytes in 0usize..500,
        ) {
            let mut list: Vec<Attached<usize>> =
                all.iter().enumerate().map(|(n, (bytes, busy))| Attached { key: n, bytes: *bytes, used: n as u64, busy: *busy }).collect();
            let mut naive = list.clone();
            for (a, b) in swaps {
                if a < list.len() && b < list.len() {
                    list.swap(a, b);
                }
            }
            let mut expect = Vec::new();
            while naive.len() > count || naive.iter().map(|a| a.bytes).sum::<usize>() > bytes {
                let Some(at) = naive.iter().position(|a| !a.busy) else { break };
                expect.push(naive.remove(at).key);
            }
            prop_assert_eq!(excess(list, Budget { count, bytes }), expect);
        }
    }
}
