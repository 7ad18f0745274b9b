use super::*;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

/// What turns of the thread found, one after the other, and how many there were.
fn attended(found: &'static [Attended]) -> (Arc<Absence>, Arc<AtomicUsize>) {
    let (absence, turns) = (Arc::new(Absence::default()), Arc::new(AtomicUsize::new(0)));
    let (its_turns, its_absence) = (turns.clone(), Arc::downgrade(&absence));
    absence.attend_by(move || {
        if let Some(absence) = its_absence.upgrade() {
            absence.turned();
        }
        let turn = its_turns.fetch_add(1, SeqCst);
        found[turn.min(found.len() - 1)]
    });
    (absence, turns)
}

fn wait_for(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_keeps_something_back_and_goes_gets_turns_until_it_is_settled() {
    let (absence, turns) = attended(&[Attended::GoesOn, Attended::Waits, Attended::Settled]);
    std::thread::sleep(4 * TICK);
    assert_eq!(turns.load(SeqCst), 0, "nothing was noted");
    absence.note();
    wait_for(|| turns.load(SeqCst) == 3);
    std::thread::sleep(8 * TICK);
    assert_eq!(turns.load(SeqCst), 3, "it was settled");
    absence.note();
    wait_for(|| turns.load(SeqCst) == 4);
    // It falls asleep.
    wait_for(|| absence.unwatched.load(SeqCst));
    absence.note();
    wait_for(|| turns.load(SeqCst) == 5);
    // Its end is heard in its sleep.
    wait_for(|| absence.unwatched.load(SeqCst));
    std::thread::sleep(4 * TICK);
    absence.end();
    wait_for(|| Arc::strong_count(&absence) == 1);
}

#[test]
fn what_turns_do_not_help_gets_fewer_of_them() {
    let (absence, turns) = attended(&[Attended::Waits]);
    let begun = Instant::now();
    absence.note();
    std::thread::sleep(400 * TICK);
    let (found, ticks) = (turns.load(SeqCst) as u128, begun.elapsed().as_nanos() / TICK.as_nanos());
    assert!(found <= ticks / u128::from(LONGEST) + 8, "{found} turns in {ticks} ticks");
    // While it dozes it is called by a note.
    wait_for(|| absence.unwatched.load(SeqCst));
    absence.note();
    wait_for(|| turns.load(SeqCst) as u128 > found);
    absence.end();
}

/// A program that takes a turn and notes something each tick while it is `there`, until the tick in which what it left is attended to. That one, and how many looks there were.
fn attend(looks: &mut Looks, mut now: u64, there: u64) -> (u64, u64) {
    let (began, mut count, mut ours) = (now, 0, 0);
    while !looks.are_over() && count < 1_000_000 {
        now += u64::from(looks.apart());
        count += 1;
        let done = (now - began).min(there);
        if !looks.look(began + done + ours, began + done) {
            continue;
        }
        ours += 1;
        let left = done == there;
        looks.found(if left { Attended::Settled } else { Attended::Idle }, began + done + ours, began + done);
        if left {
            break;
        }
    }
    (now, count)
}

#[test]
fn who_is_always_there_is_looked_at_seldom() {
    let (_, count) = attend(&mut Looks::default(), 0, 100_000);
    let least = 100_000 / u64::from(RARE);
    assert!((least..least + 40).contains(&count), "{count} looks");
}

#[test]
fn what_is_left_behind_waits_the_longer_the_longer_somebody_was_there() {
    for there in [1, 5, 20, 50, 200, 1000, 100_000] {
        let (first, _) = attend(&mut Looks::default(), 0, there);
        assert!(first - there <= 2 * u64::from(RARE), "{} ticks after {there}", first - there);
        // Who has been away is looked after well for a while.
        let mut looks = Looks { pace: Pace::AWAY, ..Looks::default() };
        let (again, _) = attend(&mut looks, 0, there);
        let late = (again - there).saturating_sub(2);
        assert!(late <= there / 20, "{late} ticks more after {there}");
        assert_eq!(looks.apart(), 1, "{there}");
    }
}

#[test]
fn who_polls_and_has_settled_is_left_alone_soon() {
    let (mut looks, mut turns, mut count) = (Looks::default(), 0, 0);
    looks.look(1, 1);
    while !looks.are_over() {
        (turns, count) = (turns + 100, count + 1);
        if looks.look(turns, 1) {
            looks.found(Attended::Idle, turns + 1, 1);
        }
    }
    assert_eq!((count, looks.apart()), (DROWSY, 1), "it was no proof that he goes away");
    // What a turn does not help is asked after more and more seldom.
    let asked: Vec<_> = (0..1500)
        .filter(|i| {
            let takes = looks.look(turns + 2 * i, 2);
            if takes {
                looks.found(Attended::Waits, turns + 2 * i + 1, 2);
            }
            takes
        })
        .collect();
    assert_eq!(asked, [4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280]);
}

#[test]
fn looks_are_further_apart_while_cores_are_scarce() {
    let scarce: Vec<_> = std::iter::successors(Some(1), |&ticks| Some(paced(ticks, Some(true)))).take(8).collect();
    assert_eq!(scarce, [1, 2, 4, 8, 16, 32, 32, 32]);
    let again: Vec<_> = std::iter::successors(Some(32), |&ticks| Some(paced(ticks, Some(false)))).take(8).collect();
    assert_eq!(again, [32, 16, 8, 4, 2, 1, 1, 1]);
    assert_eq!(paced(8, None), 8);
}

#[test]
fn whether_cores_are_scarce_is_asked_seldom() {
    // Nobody noted anything, so nobody waits.
    let mut crowd = Crowd { ticks: 32, ..Crowd::default() };
    for ticks in [32, 16, 8] {
        (1..CENSUS).for_each(|_| crowd.look(0));
        assert_eq!(crowd.ticks, ticks);
        crowd.look(0);
        assert_eq!(crowd.ticks, ticks / 2);
    }
}

#[test]
fn a_call_that_comes_late_does_not_cut_the_next_rest_short() {
    let begun = Instant::now();
    std::thread::current().unpark();
    rest(TICK, || false);
    assert!(begun.elapsed() >= TICK);
    let begun = Instant::now();
    rest(Duration::from_secs(60), || true);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn who_takes_turns_is_left_alone() {
    let (absence, turns) = attended(&[Attended::Settled]);
    let (mut most, mut last) = (Duration::ZERO, Instant::now());
    let end = last + 20 * TICK;
    while Instant::now() < end {
        absence.turned();
        absence.note();
        // Read once: what lies between two readings would be in neither of them.
        let now = Instant::now();
        (most, last) = (most.max(now - last), now);
    }
    let taken = turns.load(SeqCst);
    // A busy machine may have taken the core away for long, also since the last one.
    most = most.max(last.elapsed());
    assert!(taken == 0 || most > TICK, "{taken} turns, {most:?} between two of ours at most");
    // Who polls, and keeps nothing back any more, is not looked after for ever.
    wait_for(|| {
        absence.turned();
        absence.unwatched.load(SeqCst)
    });
    absence.end();
}

#[test]
fn who_tells_that_he_was_away_is_looked_at_soon() {
    let mut looks = Looks::default();
    (1..100).for_each(|i| _ = looks.look(i, i));
    assert_eq!(looks.apart(), RARE);
    looks.told();
    assert_eq!(looks.apart(), 1);
    // And is heard.
    let (absence, _) = attended(&[Attended::Settled]);
    absence.was_away();
    absence.note();
    wait_for(|| !absence.was_away.load(SeqCst));
    absence.end();
}

#[test]
fn who_sleeps_is_woken_by_others() {
    let mut looks = Looks::default();
    (1..100).for_each(|i| _ = looks.look(i, i));
    assert!(looks.look(99, 99));
    looks.found(Attended::Asleep, 99, 99);
    assert_eq!((looks.pace.ticks, looks.pause), (RARE, 2), "he is not away");
}

#[test]
fn what_is_left_behind_right_after_a_note_that_woke_leaves_at_the_first_look() {
    let mut looks = Looks { idle: DROWSY, ..Looks::default() };
    assert!(looks.are_over());
    looks.woken(50, 1);
    assert!(!looks.are_over() && looks.look(50, 1));
}

#[test]
fn without_somebody_to_call_nothing_happens() {
    let absence = Arc::new(Absence::default());
    absence.note();
    assert_eq!(Arc::strong_count(&absence), 1, "a thread has it");
}

#[test]
fn it_ends_with_the_domain() {
    let (absence, turns) = attended(&[Attended::Over]);
    absence.note();
    wait_for(|| Arc::strong_count(&absence) == 1);
    assert_eq!(turns.load(SeqCst), 1);
}
