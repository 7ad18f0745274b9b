//! Which connections do without finding out what the network bears, and when (`docs/adr/0019-tcp.md`).
//!
//! From one network namespace of this kernel to another there is mostly no network that others share. Then the host's way of congestion control
//! only costs if it spaces packets in time, once there is much to be sent. While there is little the simplest way costs more: it lets
//! few packets out at once, and messages go in parts.

use super::connection::{Connection, Halves};
use crate::peer::name::Name;
use crate::sys::host;
use crate::sys::tcp::{self, Health};
use crate::transport::Greeting;
use rustix::fd::OwnedFd;

/// Bytes of payload that are much.
const MUCH: usize = 256 << 10;
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

/// How a connection goes.
#[derive(Default)]
pub(super) struct Haste {
    /// The other side is in another namespace of this kernel, and no network was noticed between.
    may: bool,
    hurries: bool,
    /// There was much to be sent since the last look.
    much: bool,
    losses: Losses,
}

impl Haste {
    /// A further connection of a pair leads where the first one does.
    pub(super) fn may_like(&mut self, first: &Haste) {
        self.may = first.may;
    }

    fn hurry(&mut self, fd: &OwnedFd) {
        self.much = true;
        if self.may && !self.hurries {
            self.hurries = true;
            tcp::hurry(fd);
        }
    }

    /// Where packets are lost there is a network to be found out about: without that each loss costs a hundred times as much.
    fn look(&mut self, health: &Health, fd: &OwnedFd) {
        self.may &= !self.losses.are_frequent(health);
        let much = std::mem::take(&mut self.much);
        if self.hurries && !(self.may && much) {
            self.hurries = false;
            tcp::do_not_hurry(fd);
        }
    }
}

impl Connection {
    /// Who the other side is is known. If it lies about that it only hurries us.
    pub(super) fn may_hurry(&self, halves: &mut Halves, greeting: &Greeting) {
        let next_door = Name::from_bytes(&greeting.hello.from).is_ok_and(|from| from.is_under_kernel_of(host::id()));
        halves.haste.may = next_door && tcp::is_next_door(self.stream().fd());
    }

    /// There is payload to be sent, or no room: see how much.
    #[inline]
    pub(super) fn hurry_if_much(&self, halves: &mut Halves) {
        if halves.outgoing.blocked || halves.outgoing.posted() >= MUCH {
            halves.haste.hurry(self.stream().fd());
        }
    }

    /// Looks whether it went well.
    pub(super) fn look_at_haste(&self, halves: &mut Halves, health: &Health) {
        halves.haste.look(health, self.stream().fd());
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

    #[test]
    fn who_has_much_to_send_hurries_until_he_has_not() {
        // No TCP socket: it is told in vain, and what is meant is in the books.
        let (fd, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let fd = OwnedFd::from(fd);
        let well = Health::default();
        let mut far = Haste::default();
        far.hurry(&fd);
        assert!(!far.hurries, "to another machine");

        let mut haste = Haste { may: true, ..Haste::default() };
        haste.look(&well, &fd);
        assert!(!haste.hurries, "nothing is to be sent");
        haste.hurry(&fd);
        haste.look(&well, &fd);
        assert!(haste.hurries, "a moment ago there was much");
        haste.look(&well, &fd);
        assert!(!haste.hurries);

        haste.hurry(&fd);
        for again in [1, 2] {
            assert!(haste.hurries);
            haste.hurry(&fd);
            haste.look(&Health { segments: 100 * again, again, ..well }, &fd);
        }
        haste.hurry(&fd);
        assert!(!haste.hurries, "a network was noticed");

        let mut lane = Haste::default();
        lane.may_like(&haste);
        lane.hurry(&fd);
        assert!(!lane.hurries);
    }
}
