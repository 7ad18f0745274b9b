use super::*;
use proptest::prelude::*;

/// A connection of which each read brings what `next` says, if it guesses: whether that was right, and how many bytes had to be moved. Returns the
/// guesses that were made, and the connection.
fn run(reads: usize, mut next: impl FnMut(usize) -> (bool, usize)) -> (usize, Guesses) {
    let (mut guesses, mut made) = (Guesses::new(), 0);
    for _ in 0..reads {
        guesses.turn();
        if guesses.pays() {
            let (right, moved) = next(made);
            guesses.note(Some(right), if right { 100 } else { 0 }, moved);
            made += 1;
        }
    }
    (made, guesses)
}

/// What all of it cost more than it brought, in calls.
fn net_loss(counts: Guessed) -> f64 {
    let Guessed { right, wrong, moved, .. } = counts;
    (wrong as f64 * WRONG as f64 + moved as f64) / CALL as f64 - right as f64
}

#[test]
fn right_ones_never_end() {
    let (made, guesses) = run(10_000, |_| (true, 0));
    assert_eq!((made, guesses.counts().stops), (10_000, 0));
    assert_eq!(guesses.counts(), Guessed { right: 10_000, placed: 1_000_000, ..Guessed::default() });
    // One that is too long by less than a call is worth takes nothing back.
    assert_eq!(run(10_000, |_| (true, CALL as usize)).0, 10_000);
    // Nine of ten, with a clean-up of some KiB.
    assert_eq!(run(10_000, |i| (i % 10 != 3, 8 << 10)).1.counts().stops, 0);
}

#[test]
fn wrong_ones_end_soon() {
    let (made, guesses) = run(10_000, |_| (false, 64));
    // Three at first, two after each pause of 32, 64, 128 … 8192 reads.
    assert!(made <= 3 + 2 * 9, "{made}");
    assert_eq!(guesses.counts().right, 0);
}

/// Half of them right, half wrong, in turn: not worth it.
#[test]
fn alternation_ends_soon() {
    for moved in [1, 64, 16 << 10, 1 << 20] {
        let (made, guesses) = run(10_000, |i| (i % 2 == 0, if i % 2 == 0 { 0 } else { moved }));
        assert!(made <= 100, "{made} with {moved} bytes");
        assert!(guesses.counts().stops > 5, "{guesses:?}");
    }
}

/// It is found out when it pays again: after at most as many reads as the longest pause has.
#[test]
fn it_looks_again() {
    let (_, mut guesses) = run(100_000, |_| (false, 64));
    let mut waited = 0;
    while guesses.counts().paused > 0 {
        guesses.turn();
        waited += 1;
    }
    assert!(waited <= PAUSE.0 << PAUSE.1);
    (0..4).for_each(|_| guesses.note(Some(true), 64, 0));
    // Four in a row are enough to believe it: the next pause would be the shortest.
    assert_eq!(guesses.stops, 0);
    (0..100).for_each(|_| guesses.note(Some(true), 64, 0));
    // And what was long ago is no credit.
    let wrong = (0..).take_while(|_| {
        guesses.note(Some(false), 0, 1);
        guesses.pays()
    });
    assert_eq!(wrong.count(), 5);
    assert_eq!(guesses.pause, PAUSE.0);
}

/// Neither right nor wrong, as behind news; the copy counts.
#[test]
fn news_cost_their_copies_only() {
    let mut guesses = Guesses::new();
    guesses.note(None, 0, 1000);
    assert_eq!(guesses.counts(), Guessed { moved: 1000, ..Guessed::default() });
    assert_eq!(guesses.credit, FIRST - 1000);
}

/// Who only takes the last guess's word: the rule that this one must not fall behind by much.
fn oracle(outcomes: &[(bool, usize)]) -> f64 {
    outcomes.iter().map(|(right, moved)| (if *right { -CALL } else { WRONG } + *moved as i64) as f64 / CALL as f64).sum()
}

proptest! {
    /// Whatever comes, guesses cost no more than they brought but for the first credit and half a call for each read that was not guessed in.
    #[test]
    fn losses_are_bounded(outcomes in proptest::collection::vec((any::<bool>(), prop_oneof![0usize..200, 0usize..(1 << 20)]), 1..400)) {
        let (made, guesses) = run(20_000, |i| outcomes[i % outcomes.len()]);
        let counts = guesses.counts();
        prop_assert_eq!(counts.right + counts.wrong, made as u64);
        let quiet = (20_000 - made) as f64;
        prop_assert!(net_loss(counts) <= (FIRST + (1 << 20) + WRONG) as f64 / CALL as f64 + quiet / 2.0, "{:?}", counts);
    }

    /// Where all of it together pays by far, nearly every read guesses; where it costs by far, next to none.
    #[test]
    fn what_pays_goes_on_and_what_does_not_stops(
        rate in prop_oneof![0u32..40, 85u32..=100], seed in any::<u64>(), moved in 0usize..4096,
    ) {
        let mut state = seed;
        let outcomes: Vec<_> = (0..5_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let right = ((state >> 33) % 100) < u64::from(rate);
            (right, if right { 0 } else { moved })
        }).collect();
        let (made, guesses) = run(5_000, |i| outcomes[i]);
        if rate >= 85 {
            prop_assert!(oracle(&outcomes) < 0.0 && made > 4_000, "{} of 5000: {:?}", made, guesses);
        } else {
            prop_assert!(oracle(&outcomes) > 0.0 && made < 1_500, "{} of 5000: {:?}", made, guesses);
        }
    }

    /// Beside a naive account: nothing is lost or counted twice.
    #[test]
    fn counts_are_sums(notes in proptest::collection::vec((any::<Option<bool>>(), 0usize..5000, 0usize..5000), 0..100)) {
        let mut guesses = Guesses::new();
        notes.iter().for_each(|(right, placed, moved)| guesses.note(*right, *placed, *moved));
        let of = |wanted| notes.iter().filter(|n| n.0 == wanted).count() as u64;
        let Guessed { right, wrong, placed, moved, .. } = guesses.counts();
        prop_assert_eq!((right, wrong), (of(Some(true)), of(Some(false))));
        prop_assert_eq!(placed, notes.iter().map(|n| n.1 as u64).sum::<u64>());
        prop_assert_eq!(moved, notes.iter().map(|n| n.2 as u64).sum::<u64>());
    }
}
