//! Which connections do not find out what the network bears, and which of those are made to after all (`docs/adr/0019-tcp.md`).

use super::connection::Connection;
use crate::peer::name::Name;
use crate::sys::host;
use crate::sys::tcp::{self, Health};
use crate::transport::Greeting;

/// One packet of so many that has to be sent again is too many. (Eight processes on two cores, in two namespaces: one of 9000.)
const FEW: u32 = 200;
/// So many looks must have seen too many: a queue that was full once is no lossy network.
const OFTEN: u8 = 2;

/// What of a connection was lost on the way.
#[derive(Default)]
pub(super) struct Losses {
    /// Packets that had been sent at the last look, and those sent again.
    segments: u32,
    again: u32,
    /// Looks that saw too many.
    times: u8,
}

impl Losses {
    /// Whether packets have been lost often since the last time that this was answered with yes.
    fn are_frequent(&mut self, health: &Health) -> bool {
        // The kernel's counts go round.
        let segments = health.segments.wrapping_sub(self.segments);
        let again = health.again.wrapping_sub(self.again);
        (self.segments, self.again) = (health.segments, health.again);
        self.times += u8::from(again > segments / FEW);
        let often = self.times >= OFTEN;
        if often {
            self.times = 0;
        }
        often
    }
}

impl Connection {
    /// From one namespace of this kernel to another packets rarely meet a network that others share. A peer that lies about it only hurries us.
    pub(super) fn hurry(&self, greeting: &Greeting) {
        let next_door = Name::from_bytes(&greeting.hello.from).is_ok_and(|from| from.is_under_kernel_of(host::id()));
        tcp::hurry_if_next_door(self.stream().fd(), next_door);
    }

    /// Where packets are lost there is a network to be found out about: without that each loss costs a hundred times as much.
    pub(super) fn hurry_less(&self, losses: &mut Losses, health: &Health) {
        if losses.are_frequent(health) {
            tcp::do_not_hurry(self.stream().fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a connection of which so many packets were sent, and of those again so many, since the look before.
    fn looks(looks: &[(u32, u32)]) -> Vec<bool> {
        // Both counts go round on the way.
        let mut health = Health { segments: u32::MAX - 150, again: u32::MAX, ..Health::default() };
        let mut losses = Losses { segments: health.segments, again: health.again, times: 0 };
        let look = |&(segments, again): &(u32, u32)| {
            health.segments = health.segments.wrapping_add(segments);
            health.again = health.again.wrapping_add(again);
            losses.are_frequent(&health)
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn who_loses_much_again_and_again() {
        // All is well, or nothing was sent at all.
        assert_eq!(looks(&[(100, 0), (0, 0), (1 << 20, 5000), (200, 1), (199, 0)]), [false; 5]);
        // A full queue, once; and then one again, long afterwards.
        assert_eq!(
            looks(&[(1000, 45), (1 << 20, 0), (0, 0), (1 << 20, 5000), (300, 2), (300, 2)]),
            [false, false, false, false, true, false]
        );
        // A lossy cable, also while little is sent.
        assert_eq!(looks(&[(100, 1), (100, 1), (100, 1), (100, 1)]), [false, true, false, true]);
        // All that is sent is lost.
        assert_eq!(looks(&[(1, 1), (1, 1)]), [false, true]);
    }
}
