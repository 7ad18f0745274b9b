//! Which memory the kernel still reads: calls that it was given payload by, in the order of their numbers, and the payloads that wait for
//! its notices. Notices may name several calls, come in any order, and wrap around 2^32. Calls of sendmsg(2) and requests to io_uring have numbers of
//! their own, and a payload may leave by both.

use crate::sys::zerocopy::Notice;
use std::collections::VecDeque;

/// A call that took something.
struct Call {
    /// The payload, by its own number.
    of: u32,
    bytes: u32,
    answered: bool,
}

/// By what a payload leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Calls of sendmsg(2) with `MSG_ZEROCOPY`.
    Call,
    /// Requests to io_uring.
    Request,
}

/// Calls of one kind, and the number of the first one.
#[derive(Default)]
struct Calls {
    first: u32,
    calls: VecDeque<Call>,
}

/// A payload that left, or leaves, by such calls.
struct Loan<N> {
    /// Its name for who posted it.
    id: N,
    /// Calls that are not answered.
    waits: u32,
    /// All of it has left.
    whole: bool,
}

impl<N> Loan<N> {
    fn is_over(&self) -> bool {
        self.whole && self.waits == 0
    }
}

/// The loans of one connection. `N`: what whoever posts payload calls it.
pub(super) struct Loans<N> {
    /// By [`By`].
    calls: [Calls; 2],
    /// The number of the first entry.
    first_loan: u32,
    loans: VecDeque<Loan<N>>,
    /// Calls that are not answered.
    unanswered: usize,
}

impl<N> Default for Loans<N> {
    fn default() -> Loans<N> {
        Loans { calls: Default::default(), first_loan: 0, loans: VecDeque::new(), unanswered: 0 }
    }
}

impl<N: Copy> Loans<N> {
    /// Payload `id` begins to leave. It is the last one until it is [whole](Self::whole).
    pub fn begin(&mut self, id: N) {
        self.loans.push_back(Loan { id, waits: 0, whole: false });
    }

    /// Whether the last payload has begun and not left wholly.
    pub fn is_open(&self) -> bool {
        self.loans.back().is_some_and(|loan| !loan.whole)
    }

    /// A call took `bytes` of the last payload, perhaps none, and will be answered: it has the next number.
    pub fn took(&mut self, by: By, bytes: usize) {
        let Some(loan) = self.loans.back_mut() else { return };
        loan.waits += 1;
        let of = self.first_loan.wrapping_add(self.loans.len() as u32 - 1);
        self.calls[by as usize].calls.push_back(Call { of, bytes: bytes as u32, answered: false });
        self.unanswered += 1;
    }

    /// All of the last payload has left, by such calls or others. Returns its name if nothing of it is waited for.
    pub fn whole(&mut self) -> Option<N> {
        let loan = self.loans.back_mut()?;
        loan.whole = true;
        let free = loan.is_over().then_some(loan.id);
        self.forget();
        free
    }

    /// The kernel is through with some calls. Puts the names of payloads that are free by that into `free`. Returns of how many calls that was
    /// news, and their bytes.
    pub fn answered(&mut self, by: By, notice: Notice, free: &mut VecDeque<N>) -> (usize, usize) {
        let Calls { first, calls: all } = &mut self.calls[by as usize];
        // As distances from the first call, which are short: what lies before it was answered.
        let [from, to] = notice.calls.map(|call| call.wrapping_sub(*first) as i32);
        let Ok(to) = usize::try_from(to) else { return (0, 0) };
        let (from, mut calls, mut bytes) = (usize::try_from(from).unwrap_or(0), 0, 0);
        for call in all.iter_mut().take(to.saturating_add(1)).skip(from) {
            if std::mem::replace(&mut call.answered, true) {
                continue;
            }
            calls += 1;
            bytes += call.bytes as usize;
            if let Some(loan) = self.loans.get_mut(call.of.wrapping_sub(self.first_loan) as usize) {
                loan.waits -= 1;
                if loan.is_over() {
                    free.push_back(loan.id);
                }
            }
        }
        self.unanswered -= calls;
        self.forget();
        (calls, bytes)
    }

    /// Whether the kernel is not through with something.
    pub fn waits(&self) -> bool {
        self.unanswered > 0
    }

    /// Whether it is not through with a call of this kind.
    pub fn waits_for(&self, by: By) -> bool {
        !self.calls[by as usize].calls.is_empty()
    }

    /// Calls that it is not through with.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    fn forget(&mut self) {
        for Calls { first, calls } in &mut self.calls {
            while calls.front().is_some_and(|call| call.answered) {
                calls.pop_front();
                *first = first.wrapping_add(1);
            }
        }
        while self.loans.front().is_some_and(Loan::is_over) {
            self.loans.pop_front();
            self.first_loan = self.first_loan.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    #[derive(Clone, Debug)]
    enum Step {
        /// So much of the payload that leaves is taken by a call.
        Take(By, usize),
        /// All of it has left; another one begins.
        Next,
        /// The kernel is through with some of the calls that wait, from this one on (as a part of them), so many in a row.
        Answer(By, f64, u32),
        /// It says so again of some that it had answered, or of none that there were.
        Nonsense(By, u32, u32),
    }

    fn by() -> impl Strategy<Value = By> {
        prop_oneof![Just(By::Call), Just(By::Request)]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (by(), 0usize..100_000).prop_map(|(by, n)| Step::Take(by, n)),
            2 => Just(Step::Next),
            3 => (by(), 0.0..1.0f64, 1u32..6).prop_map(|(by, at, n)| Step::Answer(by, at, n)),
            1 => (by(), any::<u32>(), 0u32..10).prop_map(|(by, at, n)| Step::Nonsense(by, at, n)),
        ]
    }

    /// Every call by its number, and which are answered; nothing is ever forgotten.
    #[derive(Default)]
    struct Naive {
        calls: [Vec<(u32, usize)>; 2],
        answered: [HashSet<usize>; 2],
        whole: HashSet<u32>,
        free: HashSet<u32>,
    }

    impl Naive {
        fn newly_free(&mut self) -> HashSet<u32> {
            let mut waits = HashSet::new();
            for (calls, answered) in self.calls.iter().zip(&self.answered) {
                waits.extend(calls.iter().enumerate().filter(|(at, _)| !answered.contains(at)).map(|(_, (id, _))| *id));
            }
            let free: HashSet<u32> = self.whole.difference(&waits).copied().collect();
            let new = free.difference(&self.free).copied().collect();
            self.free = free;
            new
        }
    }

    proptest! {
        #[test]
        fn as_a_naive_book(steps in prop::collection::vec(step(), 1..300), start in prop_oneof![Just(0u32), Just(u32::MAX - 20), any::<u32>()]) {
            let starts = [start, start.wrapping_mul(77)];
            let calls = starts.map(|first| Calls { first, calls: VecDeque::new() });
            let mut real = Loans { calls, first_loan: start ^ 7, ..Loans::default() };
            let (mut naive, mut id) = (Naive::default(), 0);
            let (mut free, mut names) = (VecDeque::new(), HashMap::new());
            real.begin(id);
            names.insert(id, ());
            for step in steps {
                let mut news = ((0, 0), (0, 0));
                match step {
                    Step::Take(by, n) => {
                        real.took(by, n);
                        naive.calls[by as usize].push((id, n));
                    }
                    Step::Next => {
                        free.extend(real.whole());
                        prop_assert!(!real.is_open());
                        naive.whole.insert(id);
                        id += 1;
                        real.begin(id);
                    }
                    Step::Answer(by, at, n) => {
                        let (calls, answered) = (&naive.calls[by as usize], &mut naive.answered[by as usize]);
                        let waiting: Vec<usize> = (0..calls.len()).filter(|c| !answered.contains(c)).collect();
                        let Some(&first) = waiting.get((at * waiting.len() as f64) as usize) else { continue };
                        let last = (first + n as usize - 1).min(calls.len() - 1);
                        let number = |at: usize| starts[by as usize].wrapping_add(at as u32);
                        news.0 = real.answered(by, Notice { calls: [number(first), number(last)], copied: false }, &mut free);
                        for call in (first..=last).filter(|c| answered.insert(*c)) {
                            news.1 = (news.1.0 + 1, news.1.1 + calls[call].1);
                        }
                    }
                    Step::Nonsense(by, at, n) => {
                        // Only what was answered, or is no call, may be named here: else it would be an answer.
                        let calls = [at, at.wrapping_add(n)];
                        let names_some = (0..=n).any(|i| {
                            let at = at.wrapping_add(i).wrapping_sub(starts[by as usize]) as usize;
                            at < naive.calls[by as usize].len() && !naive.answered[by as usize].contains(&at)
                        });
                        if !names_some {
                            news.0 = real.answered(by, Notice { calls, copied: true }, &mut free);
                        }
                    }
                }
                prop_assert_eq!(news.0, news.1);
                let freed: HashSet<u32> = free.drain(..).collect();
                prop_assert_eq!(freed, naive.newly_free());
                let waits = naive.calls.iter().zip(&naive.answered).any(|(calls, answered)| calls.len() > answered.len());
                prop_assert_eq!(real.waits(), waits);
                prop_assert!(real.is_open());
            }
        }
    }

    /// What is over takes no memory, also behind what is not.
    #[test]
    fn nothing_is_kept() {
        let calls = [u32::MAX - 5, 0].map(|first| Calls { first, calls: VecDeque::new() });
        let (mut loans, mut free) = (Loans { calls, ..Loans::default() }, VecDeque::new());
        for id in 0..100_000u32 {
            loans.begin(id);
            loans.took(By::Call, 10);
            loans.took(By::Request, 0);
            loans.took(By::Call, 10);
            assert_eq!(loans.whole(), None);
            let call = (u32::MAX - 5).wrapping_add(2 * id);
            assert_eq!(
                loans.answered(By::Call, Notice { calls: [call, call.wrapping_add(1)], copied: false }, &mut free),
                (2, 20)
            );
            // A request that sent nothing is waited for, too.
            assert!(loans.waits() && free.is_empty());
            assert_eq!(loans.answered(By::Request, Notice { calls: [id; 2], copied: false }, &mut free), (1, 0));
            assert_eq!(free.pop_front(), Some(id));
            assert!(loans.calls.iter().all(|c| c.calls.is_empty()) && loans.loans.is_empty() && !loans.waits());
        }
    }
}
