//! How quickly bytes arrive while there is much to be sent.
//!
//! What the kernel took says little: it takes megabytes before the first one has arrived. So what it still holds is taken off, asked often enough that the
//! end of a burst is known well.

use crate::sys::clock::Clock;

/// Bytes of a burst that is long enough to be measured.
pub(super) const MUCH: usize = 3 << 20;
/// Nanoseconds between looks.
const EVERY: u64 = 100_000;
/// Nanoseconds after which a sample is taken although the burst goes on.
const LONG: u64 = 20_000_000;
/// Shortest sample.
const SHORT: u64 = 500_000;

struct Run {
    width: usize,
    since: u64,
    looked: u64,
    /// Bytes that had arrived when it began.
    base: u64,
}

/// A sample that is being taken, by a clock of its own.
pub(super) struct Meter(Option<Run>, Clock);

impl Meter {
    pub fn new() -> Meter {
        Meter(None, Clock::machine())
    }

    /// Whether there is one.
    pub fn runs(&self) -> bool {
        self.0.is_some()
    }

    /// It is of no use.
    pub fn stop(&mut self) {
        self.0 = None;
    }

    /// The time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.1.now()
    }

    /// `handed` bytes were handed out so far, now by `width` connections; `flying` says how many of them have not arrived. Bytes and nanoseconds of a
    /// sample that is at its end.
    pub fn look(&mut self, now: u64, width: usize, handed: u64, flying: impl FnOnce() -> u64) -> Option<(u64, u64)> {
        let Some(run) = self.0.as_mut().filter(|run| run.width == width) else {
            let base = handed.saturating_sub(flying());
            self.0 = Some(Run { width, since: now, looked: now, base });
            return None;
        };
        let pause = now.saturating_sub(run.looked);
        if pause < EVERY {
            return None;
        }
        let flying = flying();
        let (arrived, nanos) = (handed.saturating_sub(flying), now - run.since);
        run.looked = now;
        let sample = (arrived.saturating_sub(run.base), nanos);
        if flying > 0 {
            if nanos < LONG {
                return None;
            }
            self.0 = Some(Run { width, since: now, looked: now, base: arrived });
            return Some(sample);
        }
        // The last byte arrived in between.
        self.0 = None;
        let nanos = nanos - pause / 2;
        (nanos >= SHORT && pause <= nanos / 8).then_some((sample.0, nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_measured_to_its_end() {
        let mut meter = Meter::new();
        // 8 MB at 1 B/ns.
        let handed = 8_000_000;
        let mut samples = Vec::new();
        for now in (0..12_000_000).step_by(60_000) {
            if now == 0 || meter.runs() {
                samples.extend(meter.look(now, 2, handed, || handed.saturating_sub(now)));
            }
        }
        let [(bytes, nanos)] = samples[..] else { panic!("{samples:?}") };
        assert_eq!(bytes, handed);
        assert!(nanos.abs_diff(8_000_000) < 200_000, "{nanos}");
        assert!(!meter.runs());
    }

    #[test]
    fn a_long_one_is_measured_on_its_way_and_a_change_begins_anew() {
        let mut meter = Meter::new();
        let mut samples = Vec::new();
        for now in (0..70_000_000).step_by(50_000) {
            let width = if now < 30_000_000 { 1 } else { 2 };
            samples.extend(meter.look(now, width, now + 500_000, || 500_000));
        }
        assert_eq!(samples.len(), 2, "{samples:?}");
        assert!(samples.iter().all(|(bytes, nanos)| bytes == nanos));
    }

    #[test]
    fn time_goes_on() {
        let meter = Meter::new();
        let then = meter.now();
        while meter.now() == then {}
        assert!(meter.now() > then);
    }

    #[test]
    fn who_looks_late_knows_nothing() {
        let mut meter = Meter::new();
        assert_eq!(meter.look(0, 1, 1000, || 1000), None);
        assert_eq!(meter.look(9_000_000, 1, 1000, || 0), None);
        assert!(!meter.runs());
    }
}
