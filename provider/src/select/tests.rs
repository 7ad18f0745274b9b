//! The table of a configuration, without measured costs.

use super::*;
use crate::config::force::Forced;
use crate::types::INLINE_MAX;
use proptest::prelude::*;

fn with(list: &str, config: Config) -> Config {
    let (protocol, complaints) = Forced::parse(list);
    assert!(complaints.is_empty(), "{complaints:?}");
    Config { protocol, ..config }
}

/// The rows for messages that lie anywhere.
fn plain(s: &Selection) -> Vec<Row> {
    s.rows().iter().copied().filter(|r| !r.lent).collect()
}

fn forced(list: &str) -> Selection {
    Selection::new(&with(list, Config::default()), 6000)
}

#[test]
fn borders_and_text() {
    let s = Selection::new(&Config::default(), record_max(&Config::default()));
    let at = |n| s.choose(n, false).proto;
    assert_eq!([at(0), at(232)], [ProtoId::Inline; 2]);
    assert_eq!([at(233), at(32 << 10)], [ProtoId::Eager; 2]);
    assert_eq!([at((32 << 10) + 1), at((64 << 10) - 1)], [ProtoId::Stream; 2]);
    assert_eq!([at(64 << 10), at(MAX_MSG), at(usize::MAX)], [ProtoId::Syscall; 3]);
    assert_eq!((s.row(233).from, s.row(4096).up_to, s.row(4096).proto), (233, 32 << 10, ProtoId::Eager));
    assert_eq!([s.row((64 << 10) - 1).shared, s.row(64 << 10).shared], [false, true]);
    assert_eq!(s.share_borders(ProtoId::Syscall), [64 << 10]);
    let text = s.to_string();
    assert_eq!(text.lines().count(), 6, "{text}");
    assert_eq!(s.choose_lent((4 << 10) - 1), None);
    assert_eq!(s.choose_lent(4 << 10).map(|p| (p.row, p.proto)), Some((4, ProtoId::Mapped)));
    assert_eq!(s.choose_lent(64 << 10).map(|p| s.rows()[usize::from(p.row)].shared), Some(true));
    assert_eq!(s.share_borders(ProtoId::Mapped), [32 << 10]);
    assert!(text.contains("233 .. 32768    eager") && !text.contains("forced"), "{text}");
}

proptest! {
    /// What the common case is told of a message is what the table says of it.
    #[test]
    fn the_common_case_is_that_of_the_table(
        len in 0usize..100_000, record_max in 1usize..65_000, eager_max in 232u64..60_000,
        list in prop_oneof![Just(""), Just("eager"), Just("stream:1k-4k"), Just("inline:0-100,stream:101-2k"), Just("eager:0-10k,syscall:1m-")],
    ) {
        let s = Selection::new(&with(list, Config { eager_max, ..Config::default() }), record_max);
        let common = match s.inline_row(len) {
            Some(row) => Some(Pick { row, proto: ProtoId::Inline, turned: false }),
            None => s.choose_eager(len),
        };
        if let Some(common) = common {
            prop_assert_eq!(common, s.choose(len, false), "{}", s);
        }
    }
}

#[test]
fn a_small_ring_limits_eager() {
    assert_eq!(Selection::new(&Config::default(), 1000).choose(1001, false).proto, ProtoId::Stream);
    assert_eq!(Selection::new(&Config::default(), 10).choose(232, false).proto, ProtoId::Inline);
}

#[test]
fn without_the_kernels_help_streams_carry_the_rest() {
    let s = Selection::new(&Config { cma: 1, ..Config::default() }, 6000);
    assert_eq!(s.choose(MAX_MSG, false).proto, ProtoId::Stream);
    assert_eq!(plain(&s).len(), 3);
    assert!(s.share_borders(ProtoId::Syscall).is_empty());
    assert_eq!(s.choose_lent(1 << 20).map(|p| p.proto), Some(ProtoId::Mapped), "that needs no help");
    let s = Selection::new(&Config { lend: 2, ..Config::default() }, 6000);
    assert_eq!((s.rows().len(), s.choose_lent(MAX_MSG)), (4, None));
    let s = Selection::new(&Config { syscall_min: 4 << 10, eager_max: 4 << 10, ..Config::default() }, 6000);
    assert_eq!(
        [s.choose(4096, false).proto, s.choose(4097, false).proto],
        [ProtoId::Eager, ProtoId::Syscall],
        "eager comes first"
    );
}

#[test]
fn forced_parts_are_in_the_table_and_marked() {
    let s = forced("stream");
    assert_eq!((s.rows().len(), s.inline_below, s.choose_lent(1 << 20)), (1, 0, None));
    assert_eq!([s.choose(0, false).proto, s.choose(MAX_MSG, false).proto], [ProtoId::Stream; 2]);
    assert!(s.to_string().contains("0 .. max      stream   fragments") && s.to_string().contains("(forced)"), "{s}");
    let with_kernel =
        |list| Selection::new(&Config { syscall_min: 8 << 10, eager_max: 4 << 10, ..with(list, Config::default()) }, 6000);
    let s = with_kernel("eager:0-4k,alone:64k-1m");
    let ways: Vec<(usize, Way, bool)> = plain(&s).iter().map(|r| (r.from, r.way(), r.is_forced())).collect();
    assert_eq!(
        ways,
        [
            (0, Way::Eager, true),
            (4097, Way::Stream, false),
            (8 << 10, Way::Alone, false),
            (32 << 10, Way::Shared, false),
            (64 << 10, Way::Alone, true),
            ((1 << 20) + 1, Way::Shared, false),
        ]
    );
    // Without sizes: as far as it carries.
    let s = forced("eager");
    assert_eq!([s.choose(6000, false).proto, s.choose(6001, false).proto], [ProtoId::Eager, ProtoId::Stream]);
    assert_eq!(plain(&forced("inline")).len(), 4);
    let kernel = |list| with_kernel(list).share_borders(ProtoId::Syscall);
    assert_eq!(kernel("shared:4k-8k,alone:1m-"), [4096, (8 << 10) + 1, 32 << 10, 1 << 20]);
    assert_eq!(kernel("shared"), [0]);
    let s = forced("mapped:1k-8k,stream:-1m");
    assert_eq!([1023, 1024, 8192, 8193, 1 << 20].map(|n| s.choose_lent(n).is_some()), [false, true, true, false, false]);
    assert!(s.choose_lent((1 << 20) + 1).is_some() && s.choose(1024, false).proto == ProtoId::Stream);
}

#[test]
fn what_cannot_be_is_told_and_ignored() {
    let default = Selection::new(&Config::default(), 6000);
    let record = record_max(&Config::default());
    for (list, why) in [
        ("inline:0-4k", "carries at most 232 bytes"),
        ("inline:1k-", "carries at most 232 bytes"),
        ("eager:0-65520", "FI_RUSTMX_RING_SIZE makes it longer"),
        ("eager:0-64k", "and 65535 by the longest ring"),
        ("eager:64k-", "and 65535 by the longest ring"),
        ("stream:0-9223372036854775807", "no message is longer"),
        ("mapped:0-9223372036854775807", "no message is longer"),
    ] {
        let config = with(list, Config::default());
        let told = complaint(&config).expect("a complaint");
        assert!(told.contains(why) && told.contains(list), "{told}");
        assert_eq!(Selection::new(&config, 6000).rows(), default.rows(), "{list}");
    }
    let told = complaint(&with("eager:0-200k", Config { ring_size: 1 << 20, ..Config::default() })).expect("a complaint");
    assert!(told.ends_with("eager carries at most 65535 bytes"), "no ring helps: {told}");
    let never = with("syscall:64k-,eager:0-4k", Config { cma: 1, ..Config::default() });
    let told = complaint(&never).expect("a complaint");
    assert!(told.contains("`syscall:64k-`: FI_RUSTMX_CMA=never") && !told.contains("`eager"), "{told}");
    assert_eq!(Selection::new(&never, 6000).choose(0, false).proto, ProtoId::Eager, "the other part counts");
    let told = complaint(&with("mapped", Config { lend: 2, ..Config::default() })).expect("a complaint");
    assert!(told.contains("FI_RUSTMX_LEND=never"), "{told}");
    let told = complaint(&with("syscall:64k-,mapped,stream:4k-8k,inline:1k-", Config { shm: 0, ..Config::default() }));
    let told = told.expect("a complaint");
    for part in ["`syscall:64k-`: FI_RUSTMX_SHM=no", "`mapped`: FI_RUSTMX_SHM=no", "`inline:1k-`: inline carries"] {
        assert!(told.contains(part) && !told.contains("`stream"), "{part}: {told}");
    }
    let hidden = complaint(&with("stream:1k-4m,eager:2k-3k", Config::default())).expect("a complaint");
    assert!(hidden.contains("`eager:2k-3k`: earlier parts"), "{hidden}");
    assert_eq!(complaint(&with("eager:0-4k,stream:4k-", Config::default())), None, "a common border is no mistake");
    assert_eq!(complaint(&Config::default()), None);
    assert!(record > 4096);
}

proptest! {
    /// Whatever the list: the table has no gaps, is not too long, and each size goes as the first part that has it says.
    #[test]
    fn the_first_part_that_has_a_size_counts(
        parts in proptest::collection::vec((0usize..9, 0u64..200_000, 0u64..200_000), 0..=Forced::MOST),
        never in any::<bool>(), sizes in proptest::collection::vec(0usize..300_000, 20),
    ) {
        let list: Vec<String> =
            parts.iter().map(|(w, a, b)| format!("{}:{}-{}", Way::ALL[*w].name(), a.min(b), a.max(b))).collect();
        let config = with(&list.join(","), Config { cma: u64::from(never), ..Config::default() });
        let (s, usual) = (Selection::new(&config, 6000), Selection::new(&Config { protocol: Forced::default(), ..config.clone() }, 6000));
        let rows = plain(&s);
        prop_assert!(s.rows().len() <= MAX_ROWS);
        prop_assert_eq!(rows[0].from, 0);
        prop_assert_eq!(rows[rows.len() - 1].up_to, MAX_MSG);
        for pair in rows.windows(2) {
            prop_assert_eq!(pair[0].up_to + 1, pair[1].from);
        }
        let possible = |way: Way, to: u64| match way {
            Way::Inline => to <= INLINE_MAX as u64,
            Way::Eager => to <= 6000,
            Way::Stream | Way::Mapped | Way::MappedAlone | Way::MappedShared => true,
            _ => !never,
        };
        for n in sizes {
            let wanted = parts.iter().map(|(w, a, b)| (Way::ALL[*w], *a.min(b), *a.max(b)));
            let mut has_it = wanted.filter(|(way, from, to)| possible(*way, *to) && (*from..=*to).contains(&(n as u64)));
            let mapped = has_it.clone().next().map_or(n as u64 >= config.mapped_min, |(way, ..)| way.needs_loan()) && n > INLINE_MAX;
            prop_assert_eq!(s.choose_lent(n).is_some(), mapped, "{} bytes of lent memory in\n{}", n, s);
            let want = match has_it.find(|(way, ..)| !way.needs_loan()) {
                None => (usual.row(n).way(), false),
                Some((Way::Syscall, ..)) if n < 32 << 10 => (Way::Alone, true),
                Some((Way::Syscall, ..)) => (Way::Shared, true),
                Some((way, ..)) => (way, true),
            };
            let row = s.row(n);
            prop_assert_eq!((row.way(), row.is_forced()), want, "{} bytes in\n{}", n, s);
            let shared = s.share_borders(ProtoId::Syscall).iter().filter(|b| n >= **b).count() % 2 == 1;
            prop_assert!(row.proto != ProtoId::Syscall || shared == row.shared);
        }
    }
}

mod tuned {
    //! What was measured counts after what the user says, and before the shipped sizes.

    use super::super::model::About;
    use super::super::model::tests::{about, add, curve};
    use super::*;
    use crate::config::PARAMS;

    /// A machine on which the kernel is best from 6 KiB or so, by both sides from 12 KiB or so.
    fn machine() -> Model {
        let mut model = Model::default();
        let line = |start: f64, rate: f64, to: u32| {
            (8..=to).map(|s| (1usize << s, start + (1usize << s) as f64 / rate, 0.02)).collect::<Vec<_>>()
        };
        add(&mut model, Way::Eager, &line(200.0, 3.0, 12));
        add(&mut model, Way::Stream, &line(400.0, 6.0, 26));
        add(&mut model, Way::Alone, &line(1000.0, 12.0, 26));
        add(&mut model, Way::Shared, &line(1500.0, 24.0, 26));
        model
    }

    fn set(values: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        for (name, text) in values {
            PARAMS.iter().find(|p| p.name == *name).expect("known").parse_into(&mut config, text).expect("usable");
        }
        config
    }

    fn rows(values: &[(&str, &str)]) -> Vec<(usize, Way, Origin)> {
        let model = machine();
        let tuned = Tuned { model: &model, case: Case::MESSAGE };
        let table = Selection::tuned(&set(values), 6000, Some(tuned));
        plain(&table).iter().map(|r| (r.from, r.way(), r.origin)).collect()
    }

    /// Way and origin of a size.
    fn at(rows: &[(usize, Way, Origin)], len: usize) -> (Way, Origin) {
        let row = rows.iter().rev().find(|r| r.0 <= len).expect("from 0");
        (row.1, row.2)
    }

    #[test]
    fn what_was_measured_goes_before_the_shipped_sizes() {
        let rows = rows(&[]);
        assert_eq!(at(&rows, 100), (Way::Inline, Origin::Shipped));
        assert_eq!(at(&rows, 512), (Way::Eager, Origin::Profile));
        assert_eq!(at(&rows, 9 << 10), (Way::Alone, Origin::Profile));
        assert_eq!([20 << 10, 1 << 20, 1 << 40].map(|n| at(&rows, n)), [(Way::Shared, Origin::Profile); 3]);
        assert!(rows.len() <= 6, "{rows:?}");
    }

    #[test]
    fn what_the_user_set_goes_before_what_was_measured() {
        let kernel = rows(&[("syscall_min", "64k")]);
        assert_eq!(at(&kernel, 32 << 10), (Way::Stream, Origin::Set));
        assert_eq!(at(&kernel, 64 << 10), (Way::Shared, Origin::Set), "by one side or by both, the profile says");
        let default = rows(&[("syscall_min", "16k")]);
        assert_eq!(at(&default, 9 << 10), (Way::Stream, Origin::Set), "said, though it is the default's number");
        let share = rows(&[("share_min", "1m")]);
        assert_eq!([at(&share, 1 << 19), at(&share, 1 << 20)], [(Way::Alone, Origin::Set), (Way::Shared, Origin::Set)]);
        let eager = rows(&[("eager_max", "300")]);
        assert_eq!([at(&eager, 300), at(&eager, 301)], [(Way::Eager, Origin::Set), (Way::Stream, Origin::Set)]);
    }

    #[test]
    fn what_is_forced_goes_before_all() {
        let rows = rows(&[("protocol", "stream:8k-1m"), ("syscall_min", "64k")]);
        assert_eq!(at(&rows, 100 << 10), (Way::Stream, Origin::Forced));
        assert_eq!(at(&rows, (1 << 20) + 1), (Way::Shared, Origin::Set));
        assert_eq!(at(&rows, 512), (Way::Eager, Origin::Set), "the kernel's copies were in question here");
    }

    #[test]
    fn on_one_core_nobody_helps() {
        let model = machine();
        let crowded = Tuned { model: &model, case: Case { crowded: true, ..Case::MESSAGE } };
        let table = Selection::tuned(&Config::default(), 6000, Some(crowded));
        assert_eq!((table.row(1 << 20).way(), table.share_borders(ProtoId::Syscall)), (Way::Alone, vec![]));
    }

    #[test]
    fn without_the_kernel_nobody_asks_it() {
        let rows = rows(&[("cma", "never"), ("syscall_min", "64k")]);
        assert!(rows.iter().all(|r| !r.1.needs_kernel()), "{rows:?}");
        assert_eq!(at(&rows, 1 << 20), (Way::Stream, Origin::Shipped), "no other way is in question");
        assert_eq!(at(&rows, 512), (Way::Eager, Origin::Profile));
    }

    #[test]
    fn short_messages_go_inline_whatever_was_measured() {
        let mut model = Model::default();
        add(&mut model, Way::Inline, &[(64, 900.0, 0.01), (128, 900.0, 0.01)]);
        add(&mut model, Way::Eager, &[(64, 100.0, 0.01), (4096, 100.0, 0.01)]);
        add(&mut model, Way::Stream, &[(64, 50.0, 0.01), (4096, 500.0, 0.01)]);
        let table = Selection::tuned(&Config::default(), 6000, Some(Tuned { model: &model, case: Case::MESSAGE }));
        let first = table.rows()[0];
        assert_eq!((first.way(), first.up_to, first.origin, table.inline_below), (Way::Inline, 232, Origin::Shipped, 233));
    }

    /// The machine, with exported memory.
    fn exporting(memory: &[(Way, f64, f64)]) -> Model {
        let mut model = machine();
        for (way, start, rate) in memory {
            for source in Source::ALL {
                let points: Vec<_> = (10..=26).map(|s| (1usize << s, start + (1usize << s) as f64 / rate, 0.02)).collect();
                let about = About { memory: Memory::Exported, ..about(*way, *source) };
                model.add(about, curve(&points)).expect("new");
            }
        }
        model
    }

    const LENT: [(Way, f64, f64); 6] = [
        (Way::Eager, 200.0, 3.0),
        (Way::Stream, 400.0, 6.0),
        (Way::Alone, 1000.0, 12.0),
        (Way::Shared, 1500.0, 24.0),
        (Way::MappedAlone, 700.0, 20.0),
        (Way::MappedShared, 1700.0, 40.0),
    ];

    fn lent(model: &Model, config: &Config) -> Vec<(usize, Way, Origin)> {
        let table = Selection::tuned(config, 6000, Some(Tuned { model, case: Case::MESSAGE }));
        table.rows().iter().filter(|r| r.lent).map(|r| (r.from, r.way(), r.origin)).collect()
    }

    #[test]
    fn lent_memory_has_costs_of_its_own() {
        let model = exporting(&LENT);
        let rows = lent(&model, &Config::default());
        // As others goes by stream there: 400 + n/6 = 700 + n/20 at 2571 bytes. Both: from when one alone needs what help costs (worth).
        assert!((2 << 10..=3 << 10).contains(&rows[0].0) && rows[0].1 == Way::MappedAlone, "{rows:?}");
        assert_eq!(at(&rows, 1 << 20), (Way::MappedShared, Origin::Profile));
        let tuned = Tuned { model: &model, case: Case { memory: Memory::Exported, ..Case::MESSAGE } };
        let table = Selection::tuned(&Config::default(), 6000, Some(Tuned { model: &model, case: Case::MESSAGE }));
        let settled = |len| table.settled(tuned, Source::Reused, len);
        assert_eq!([settled(64), settled(8 << 10), settled(1 << 20)], [Way::Inline, Way::MappedAlone, Way::MappedShared]);
        assert_eq!(table.lent_row(600).way(), table.row(600).way(), "as others");
    }

    #[test]
    fn the_kernel_begins_where_the_user_says() {
        let from = |said: &[(&str, &str)]| {
            let table = Selection::new(&set(said), 40_000);
            plain(&table).iter().find(|row| row.way().needs_kernel()).map(|row| row.from)
        };
        assert_eq!(from(&[("syscall_min", "16k")]), Some(16 << 10), "a record would reach to 32 KiB");
        assert_eq!(from(&[("syscall_min", "16k"), ("eager_max", "20k")]), Some((20 << 10) + 1), "of both the record goes first");
        assert_eq!(from(&[("syscall_min", "16k"), ("cma", "never")]), None);
    }

    #[test]
    fn a_profile_without_exported_memory_leaves_its_rows_as_shipped() {
        let shipped: Vec<_> = Selection::new(&Config::default(), 6000)
            .rows()
            .iter()
            .filter(|r| r.lent)
            .map(|r| (r.from, r.way(), r.origin))
            .collect();
        assert_eq!(lent(&machine(), &Config::default()), shipped);
        assert_eq!(lent(&exporting(&[(Way::Stream, 1.0, 100.0)]), &Config::default()), shipped, "mapping was not measured");
    }

    #[test]
    fn where_mapping_does_not_pay_lent_memory_goes_as_other_memory() {
        let mut slow = LENT;
        slow[4].1 = 1e7;
        slow[5].1 = 1e7;
        assert!(lent(&exporting(&slow), &Config::default()).iter().all(|r| r.0 >= 1 << 26), "mapping takes 10 ms");
        let set = set(&[("mapped_min", "4k"), ("lend", "auto")]);
        assert_eq!(lent(&exporting(&slow), &set)[0], (4 << 10, Way::MappedAlone, Origin::Set), "the user said so");
        assert!(lent(&exporting(&LENT), &self::set(&[("lend", "never")])).is_empty());
        let forced = lent(&exporting(&LENT), &self::set(&[("protocol", "mapped-shared:8k-64k,stream:1m-")]));
        assert_eq!(
            (at(&forced, 8 << 10), forced.last().map(|r| r.0 < 1 << 20)),
            ((Way::MappedShared, Origin::Forced), Some(true))
        );
    }

    proptest! {
        /// Whatever was measured and whatever is set: a table that the engine can run, in which the user's sizes hold.
        #[test]
        fn the_engine_can_run_it(
            curves in proptest::collection::vec((0usize..5, proptest::collection::vec((1usize..3_000_000, 1f64..1e6), 1..30)), 0..5),
            eager in proptest::option::of(232u64..61_440), syscall in proptest::option::of(4096u64..1 << 21),
            share in proptest::option::of(16_384u64..1 << 21), never in any::<bool>(), record in 250usize..70_000,
            forced in proptest::collection::vec((0usize..9, 0u64..200_000, 0u64..200_000), 0..=Forced::MOST),
            sizes in proptest::collection::vec(0usize..3_000_000, 30),
        ) {
            let mut model = Model::default();
            for (way, steps) in curves {
                if model.curves().iter().any(|(a, _)| a.way == Way::CARRIERS[way]) {
                    continue;
                }
                let mut size = 0;
                let points: Vec<_> = steps.iter().map(|&(step, ns)| { size += step >> (way * 3); size += 1; (size, ns, 0.05) }).collect();
                add(&mut model, Way::CARRIERS[way], &points);
            }
            let list: Vec<String> = forced.iter().map(|(w, a, b)| format!("{}:{}-{}", Way::ALL[*w].name(), a.min(b), a.max(b))).collect();
            let text = |n: Option<u64>| n.map(|n| n.to_string());
            let values = [("eager_max", text(eager)), ("syscall_min", text(syscall)), ("share_min", text(share))];
            let mut said: Vec<(&str, &str)> = values.iter().filter_map(|(n, v)| Some((*n, v.as_deref()?))).collect();
            let list = list.join(",");
            said.push(("protocol", &list));
            said.push(("cma", if never { "never" } else { "auto" }));
            let table = Selection::tuned(&set(&said), record, Some(Tuned { model: &model, case: Case::MESSAGE }));
            let rows = plain(&table);
            prop_assert!(table.rows().len() <= MAX_ROWS && rows[0].from == 0 && rows[rows.len() - 1].up_to == MAX_MSG);
            prop_assert!(rows.windows(2).all(|p| p[0].up_to + 1 == p[1].from));
            for r in &rows {
                prop_assert!(r.from <= r.up_to);
                match r.way() {
                    Way::Inline => prop_assert!(r.up_to <= INLINE_MAX),
                    Way::Eager => prop_assert!(r.up_to <= record && r.up_to <= usize::from(u16::MAX)),
                    Way::Stream => {}
                    _ => prop_assert!(!never),
                }
                let whole = |n: u64| n as usize;
                let long = eager.map_or(INLINE_MAX, whole).min(record).max(INLINE_MAX);
                if !r.is_forced() {
                    prop_assert_eq!(r.way() == Way::Inline, r.from <= INLINE_MAX, "{} in {}", r.from, table);
                }
                if r.is_forced() || r.up_to <= INLINE_MAX {
                    continue;
                }
                if eager.is_some() {
                    prop_assert_eq!(r.way() == Way::Eager, r.up_to <= long, "{} in {}", r.from, table);
                }
                if let Some(from) = syscall.map(whole).filter(|_| !never) {
                    prop_assert_eq!(r.way().needs_kernel(), r.from >= from.max(long + 1), "{} in {}", r.from, table);
                }
                if let Some(from) = share.map(whole).filter(|_| r.way().needs_kernel()) {
                    prop_assert_eq!(r.way() == Way::Shared, r.from >= from, "{} in {}", r.from, table);
                }
            }
            for n in sizes {
                prop_assert!(rows[usize::from(table.choose(n, false).row)].from <= n && n <= table.row(n).up_to);
            }
        }
    }
}
