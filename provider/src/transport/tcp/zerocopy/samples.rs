//! What one way cost lately: the middle one of some samples, so that single bad moments do not count.

/// Samples of each way.
const SAMPLES: usize = 7;

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

    /// The middle one, if all were seen here.
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

    /// The middle one, once there are enough.
    pub fn cost(&self) -> Option<f64> {
        let mut sorted = self.last;
        sorted.sort_by(f32::total_cmp);
        self.are_enough().then_some(sorted[SAMPLES / 2].into())
    }
}
