//! The ring against a naive queue (proptest), and every interleaving of a small one (loom).

#[cfg(not(loom))]
mod model {
    use super::super::*;
    use crate::mem::shared::{Heap, SharedMem};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Op {
        /// `next`: how long the record behind it is taken to be; 0: nobody guesses.
        Write {
            lines: u32,
            keep: u32,
            next: u32,
        },
        Read,
        Ack,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (1u32..5, 0u32..3, 0u32..6).prop_map(|(lines, keep, next)| Op::Write { lines, keep, next }),
            3 => Just(Op::Read),
            2 => Just(Op::Ack),
        ]
    }

    /// Payload words are filled with values that would pass for headers, so stale payload taken for a
    /// header shows up at once.
    fn fill(mem: &SharedMem, offset: usize, lines: u32, stamp: u64) {
        for w in 3..lines as usize * LINE_WORDS {
            mem.word(offset / 8 + w).store(stamp << 8 | 2, Ordering::Relaxed);
        }
    }

    /// Behind the record that begins a lap a line is cleared: it must not be one that the reader has not read.
    #[test]
    fn a_short_lap_begins_when_the_reader_has_left_one_line_more() {
        let mem = SharedMem::new(Heap::new(16 * LINE));
        let mut tx = Producer::new(mem.clone(), 16);
        tx.set_short_laps(8);
        let mut rx = Consumer::new(mem, 16);
        let head = |stamp: u64| [stamp << 8 | 2, stamp, !stamp];
        for stamp in 1..=8 {
            tx.reserve(1, 0).expect("room");
            tx.publish(1, head(stamp));
        }
        assert_eq!(rx.peek(), Peeked::Record(head(1)));
        rx.release(1);
        tx.ack(rx.consumed()).expect("honest reader");
        // Room for the rest of the ring and the record, and for nothing else.
        tx.reserve(1, 0).expect("room");
        tx.publish(1, head(9));
        for stamp in 2..=9 {
            assert_eq!(rx.peek(), Peeked::Record(head(stamp)));
            rx.release(1);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
        #[test]
        fn behaves_like_a_queue(ring_lines in 6u32..30, short in 1u32..30, ops in proptest::collection::vec(op(), 0..400)) {
            let mem = SharedMem::new(Heap::new(ring_lines as usize * LINE));
            let mut tx = Producer::new(mem.clone(), ring_lines);
            tx.set_short_laps(short);
            let mut rx = Consumer::new(mem.clone(), ring_lines);
            let mut oracle: VecDeque<(u64, u32)> = VecDeque::new();
            let mut stamp = 1u64;
            for op in ops {
                match op {
                    Op::Write { lines, keep, next } => {
                        if let Some(offset) = tx.reserve(lines, keep) {
                            prop_assert!(offset / LINE + lines as usize <= ring_lines as usize);
                            fill(&mem, offset, lines, stamp);
                            tx.publish(lines, [stamp << 8 | 2, stamp, !stamp]);
                            if next > 0 {
                                tx.clear_behind_next(next);
                            }
                            oracle.push_back((stamp, lines));
                            stamp += 1;
                        } else {
                            // Refused only when a naive ring with one spare line and a skip would refuse, whatever the laps.
                            prop_assert!(tx.free() < 2 * lines + 1 + keep);
                        }
                    }
                    Op::Read => match rx.peek() {
                        Peeked::Record(head) => {
                            let (want, lines) = oracle.pop_front().expect("a record that was never written");
                            prop_assert_eq!(head, [want << 8 | 2, want, !want]);
                            prop_assert!(lines <= rx.contiguous());
                            rx.release(lines);
                        }
                        Peeked::Empty => prop_assert!(oracle.is_empty(), "a record was lost"),
                        Peeked::Corrupt => prop_assert!(false, "corrupt"),
                    },
                    Op::Ack => prop_assert!(tx.ack(rx.consumed()).is_ok()),
                }
                prop_assert!(tx.written().wrapping_sub(tx.acked()) <= ring_lines);
            }
        }
    }

    /// Who is answered at once stays in the first lines; who is not, or has much to say, gets the whole ring, and comes back.
    #[test]
    fn laps_are_as_long_as_they_must_be() {
        let mem = SharedMem::new(Heap::new(64 * LINE));
        let (mut tx, mut rx) = (Producer::new(mem.clone(), 64), Consumer::new(mem, 64));
        tx.set_short_laps(16);
        let mut furthest = |records: usize, lines: u32, answered: bool| {
            let mut furthest = 0;
            for _ in 0..records {
                let Some(offset) = tx.reserve(lines, 0) else { break };
                tx.publish(lines, [2, 0, 0]);
                furthest = furthest.max(offset / LINE + lines as usize);
                if answered {
                    assert!(matches!(rx.peek(), Peeked::Record(_)));
                    rx.release(lines);
                    tx.ack(rx.consumed()).expect("ack");
                }
            }
            while !answered && matches!(rx.peek(), Peeked::Record(_)) {
                rx.release(lines);
                tx.ack(rx.consumed()).expect("ack");
            }
            furthest
        };
        assert!(furthest(100, 3, true) <= 16);
        // The first burst may begin with a skip, which is in the reader's hands until it reads.
        assert!((0..2).map(|_| furthest(100, 3, false)).max() > Some(60), "nobody reads");
        furthest(400, 3, true);
        assert!(furthest(100, 3, true) <= 16, "it came back");
        assert!(furthest(10, 9, true) > 16, "long ones");
    }

    /// Who was answered, and goes on with a record as long as the last one, clears nothing any more when it is published: a line that the reader has had
    /// in its hands would have to be fetched first.
    #[test]
    fn the_line_behind_the_next_record_is_cleared_ahead() {
        let mem = SharedMem::new(Heap::new(32 * LINE));
        let (mut tx, mut rx) = (Producer::new(mem.clone(), 32), Consumer::new(mem.clone(), 32));
        let mut send = |tx: &mut Producer<SharedMem>, lines: u32| {
            let offset = tx.reserve(lines, 0).expect("room");
            fill(&mem, offset, lines, 1);
            let before: Vec<u64> = (0..32).map(|line| mem.word(line * LINE_WORDS).load(Ordering::Relaxed)).collect();
            tx.publish(lines, [2, 0, 0]);
            tx.clear_behind_next(lines);
            assert!(matches!(rx.peek(), Peeked::Record(_)));
            rx.release(lines);
            assert_eq!(rx.peek(), Peeked::Empty);
            tx.ack(rx.consumed()).expect("ack");
            before[(offset / LINE + lines as usize) % 32]
        };
        // After one lap there is something in every line.
        let behind: Vec<u64> = (0..30).map(|_| send(&mut tx, 3)).collect();
        assert_eq!(behind[10..].iter().filter(|&&word| word != 0).count(), 4, "twice in a lap of ten, at its turn: {behind:?}");
        // A record of another length: what was cleared is not where it ends.
        for lines in [5, 3, 3, 1, 1, 3, 2, 3, 4] {
            send(&mut tx, lines);
        }
    }

    #[test]
    fn a_lying_reader_is_caught() {
        let mem = SharedMem::new(Heap::new(8 * LINE));
        let mut tx = Producer::new(mem, 8);
        tx.reserve(2, 0).expect("room");
        tx.publish(2, [2, 0, 0]);
        assert_eq!(tx.ack(3), Err(BadPosition));
        assert_eq!(tx.ack(2), Ok(()));
        assert_eq!(tx.ack(1), Ok(()), "old news");
        assert_eq!(tx.acked(), 2);
    }

    #[test]
    fn a_lying_writer_is_caught() {
        let mem = SharedMem::new(Heap::new(8 * LINE));
        let mut rx = Consumer::new(mem.clone(), 8);
        for bad in [SKIP, SKIP | 7 << 16, SKIP | 1 << 8 | 8 << 16, SKIP | 9 << 16, SKIP | 8 << 16 | 1 << 40] {
            mem.word(0).store(bad, Ordering::Relaxed);
            assert_eq!(rx.peek(), Peeked::Corrupt, "{bad:#x}");
        }
        // A skip of the whole lap that comes back to itself must not spin.
        mem.word(0).store(SKIP | 8 << 16, Ordering::Relaxed);
        assert_eq!(rx.peek(), Peeked::Corrupt);
    }

    #[test]
    fn positions_wrap_at_32_bits() {
        let mem = SharedMem::new(Heap::new(8 * LINE));
        let mut tx = Producer::new(mem.clone(), 8);
        let mut rx = Consumer::new(mem, 8);
        for start in [&mut tx.written, &mut tx.acked, &mut rx.consumed] {
            *start = u32::MAX - 2;
        }
        for i in 0..20u64 {
            tx.reserve(3, 0).expect("room");
            tx.publish(3, [i << 8 | 2, 0, 0]);
            assert!(matches!(rx.peek(), Peeked::Record([w, ..]) if w == i << 8 | 2));
            rx.release(3);
            tx.ack(rx.consumed()).expect("ack");
        }
    }
}

#[cfg(loom)]
mod interleavings {
    use super::super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    /// Three records of one and two lines through a ring of four, the reader's position handed back through a word:
    /// every interleaving delivers each record once, in order, with its payload.
    #[test]
    fn writer_and_reader() {
        loom::model(|| {
            const LINES: u32 = 4;
            let mem: Arc<Vec<AtomicU64>> = Arc::new((0..LINES as usize * LINE_WORDS).map(|_| AtomicU64::new(0)).collect());
            let consumed = Arc::new(AtomicU64::new(0));
            let (writer_mem, seen) = (mem.clone(), consumed.clone());
            let writer = loom::thread::spawn(move || {
                let mut tx = Producer::new(writer_mem.clone(), LINES);
                for (stamp, lines) in [(1u64, 1u32), (2, 2), (3, 1)] {
                    let offset = loop {
                        tx.ack(seen.load(Ordering::Acquire) as u32).expect("honest reader"); // A2
                        if let Some(o) = tx.reserve(lines, 0) {
                            break o;
                        }
                        loom::thread::yield_now();
                    };
                    for w in [3, lines as usize * LINE_WORDS - 1] {
                        writer_mem.word(offset / 8 + w).store(stamp << 8 | 2, Ordering::Relaxed);
                    }
                    if lines == 2 {
                        // The first word of the second line looks like a header.
                        writer_mem.word(offset / 8 + LINE_WORDS).store(stamp << 8 | 2, Ordering::Relaxed);
                    }
                    tx.publish(lines, [stamp << 8 | 2, stamp, 0]);
                    tx.clear_behind_next(2);
                }
            });
            let mut rx = Consumer::new(mem.clone(), LINES);
            for (stamp, lines) in [(1u64, 1u32), (2, 2), (3, 1)] {
                let head = loop {
                    match rx.peek() {
                        Peeked::Record(head) => break head,
                        Peeked::Empty => loom::thread::yield_now(),
                        Peeked::Corrupt => panic!("corrupt"),
                    }
                };
                assert_eq!(head, [stamp << 8 | 2, stamp, 0]);
                let base = rx.offset() / 8;
                for w in [3, lines as usize * LINE_WORDS - 1] {
                    assert_eq!(mem.word(base + w).load(Ordering::Relaxed), stamp << 8 | 2);
                }
                // Who reads may take the lines before it gives them back.
                mem.take_lines(base, base + lines as usize * LINE_WORDS);
                rx.release(lines);
                consumed.store(u64::from(rx.consumed()), Ordering::Release); // R2
            }
            assert_eq!(rx.peek(), Peeked::Empty);
            writer.join().expect("writer");
        });
    }

    /// A record announces payload elsewhere, which is written behind it: a word of its line, in which a lap ago stood that it was all there, says when it is
    /// (`transport/link/cell.rs`). In no interleaving is the payload of then taken for that of now.
    #[test]
    fn payload_behind_its_record() {
        loom::model(|| {
            const LINES: u32 = 4;
            const FILLED: usize = LINE_WORDS - 2;
            let mem: Arc<Vec<AtomicU64>> = Arc::new((0..LINES as usize * LINE_WORDS).map(|_| AtomicU64::new(0)).collect());
            let cell = Arc::new(AtomicU64::new(7));
            mem.word(FILLED).store(2, Ordering::Relaxed);
            let (writer_mem, writer_cell) = (mem.clone(), cell.clone());
            let writer = loom::thread::spawn(move || {
                let mut tx = Producer::new(writer_mem.clone(), LINES);
                let at = tx.reserve(1, 0).expect("empty") / 8;
                writer_mem.word(at + FILLED).store(0, Ordering::Relaxed);
                tx.publish(1, [1 << 8 | 2, 1, 0]);
                for filled in [1, 2] {
                    writer_cell.store(7 + filled, Ordering::Relaxed);
                    writer_mem.word(at + FILLED).store(filled, Ordering::Release);
                }
            });
            let rx = {
                let mut rx = Consumer::new(mem.clone(), LINES);
                while rx.peek() == Peeked::Empty {
                    loom::thread::yield_now();
                }
                rx
            };
            let mut filled = 0;
            while filled < 2 {
                let said = mem.word(rx.offset() / 8 + FILLED).load(Ordering::Acquire);
                assert!(said >= filled && cell.load(Ordering::Relaxed) >= 7 + said, "{said}");
                filled = said;
                loom::thread::yield_now();
            }
            writer.join().expect("writer");
        });
    }
}
