//! What one way cost lately: one of the least of some samples. What disturbs a thread makes it slower, never quicker, so bad moments do not count, even if
//! half of the samples met one: with the middle one, and one sample in fifty disturbed, one of ten thousand modelled connections met four in seven.

/// Samples of each way.
const SAMPLES: usize = 7;
/// Which of them is the cost, from the least on. A way that became better is known to be from so many further samples on, and one.
pub(super) const COUNTS: usize = 2;

/// The last costs of one way, in nanoseconds for a KiB; without a copy with what the notice took.
#[derive(Clone, Copy, Default)]
pub(super) struct Samples {
    last: [f32; SAMPLES],
    pub count: usize,
    /// Of these what others saw.
    others: usize,
}

impl Samples {
    /// What others saw.
    pub fn from_others(cost: f64) -> Samples {
        Samples { last: [cost as f32; SAMPLES], count: SAMPLES, others: SAMPLES }
    }

    /// The same, if all were seen here.
    pub fn own_cost(&self) -> Option<f64> {
        self.cost().filter(|_| self.count - self.others >= SAMPLES)
    }

    pub fn add(&mut self, cost: f64) {
        self.last[self.count % SAMPLES] = cost as f32;
        self.count += 1;
    }

    pub fn are_enough(&self) -> bool {
        self.count >= SAMPLES
    }

    /// What it costs, once there are enough.
    pub fn cost(&self) -> Option<f64> {
        let mut sorted = self.last;
        sorted.sort_by(f32::total_cmp);
        self.are_enough().then_some(sorted[COUNTS].into())
    }
}
