//! Answers beside a naive target, which copies all of what is read when it is asked for.

use super::super::tests::links;
use super::*;
use crate::mem::user::of_slice;
use crate::region::Region;
use crate::transport::link::Link;
use proptest::prelude::*;

const LEN: usize = 600;

#[derive(Clone, Debug)]
enum Step {
    Read(usize, usize),
    Write(usize, usize, u8),
    /// So many records are sent, in fragments of so many bytes.
    Pay(usize, usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let range = (0..LEN, 0usize..200).prop_map(|(at, len)| (at, len.min(LEN - at)));
    prop_oneof![
        2 => range.clone().prop_map(|(at, len)| Step::Read(at, len)),
        3 => (range, any::<u8>()).prop_map(|((at, len), value)| Step::Write(at, len, value)),
        3 => (1usize..6, 1usize..150).prop_map(|(records, fragment)| Step::Pay(records, fragment)),
    ]
}

/// What came of an answer, and whether that is all.
type Answer = (Vec<u8>, bool);

/// What came to the asker: by operation.
fn take(link: &mut Link, answers: &mut [Answer]) {
    while let Some(header) = link.peek().expect("sound") {
        let Ending { id, outcome, .. } = Ending::parse(header.tag).expect("an answer");
        let (bytes, done) = &mut answers[id as usize];
        assert!(outcome.is_ok() && !*done && header.data == bytes.len() as u64);
        link.payload_append(&header, bytes);
        *done = header.flags & flag::LAST != 0;
        link.consume(header.lines());
    }
    link.tell();
}

proptest! {
    #[test]
    fn each_answer_is_of_the_memory_as_it_was(steps in proptest::collection::vec(any_step(), 1..60)) {
        let (mut link, mut asker) = links();
        let (mut regions, mut debts, mut parts) = (Regions::default(), Debts::default(), Parts::default());
        let mut memory: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
        let all = of_slice(&mut memory);
        let region = Region { memory: all, access: Access::REMOTE_READ | Access::REMOTE_WRITE, by_address: false };
        regions.register(7, region).expect("registered");
        let (mut now, mut meant, mut answers) = (memory.clone(), Vec::<Vec<u8>>::new(), Vec::<Answer>::new());
        for step in steps.into_iter().chain([Step::Pay(10_000, 100)]) {
            match step {
                Step::Read(at, len) => {
                    debts.owe(meant.len() as u32, 0, Owed::Bytes { key: 7, addr: at as u64, len, sent: 0 });
                    meant.push(now[at..at + len].to_vec());
                    answers.push((Vec::new(), false));
                }
                Step::Write(at, len, value) => {
                    debts.keep(&regions, 7, all.part(at, len));
                    regions.write_in(7, all.part(at, len), &vec![value; len]).expect("written");
                    now[at..at + len].fill(value);
                }
                Step::Pay(records, fragment) => {
                    for _ in 0..records {
                        match debts.pay(&mut link, &regions, &mut parts, fragment) {
                            Ok(()) => {}
                            Err(NotSent::Full) => take(&mut asker, &mut answers),
                            Err(NotSent::Corrupt) => panic!("corrupt"),
                        }
                        link.refresh().expect("sound");
                    }
                    take(&mut asker, &mut answers);
                }
            }
        }
        prop_assert!(debts.is_empty() && debts.copies.is_empty() && debts.kept == 0);
        for (answer, meant) in answers.iter().zip(&meant) {
            prop_assert!(answer.1 && answer.0 == *meant, "{answer:?} instead of {meant:?}");
        }
    }
}
