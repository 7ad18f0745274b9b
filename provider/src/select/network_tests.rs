use super::super::model::tests::curve;
use super::super::model::{About, Memory, Operation};
use super::super::profile::{Key, Profile};
use super::super::{Origin, record_max_far};
use super::*;
use proptest::prelude::*;

fn add(model: &mut Model, way: Way, points: &[(usize, f64, f64)]) {
    for source in Source::ALL {
        let about = About { operation: Operation::Send, peer: PeerClass::Network, memory: Memory::Private, source: *source, way };
        model.add(about, curve(points)).expect("new");
    }
}

/// A link as its four numbers say.
fn link(costs: &LinkCosts) -> Model {
    let mut model = Model::default();
    let points = |way, sizes: &[usize]| -> Vec<(usize, f64, f64)> {
        sizes.iter().map(|n| (*n, costs.cost(way, *n).expect("a way there"), 0.01)).collect()
    };
    add(&mut model, Way::Inline, &points(Way::Inline, &[64, 128]));
    let sizes: Vec<usize> = (8..=22).map(|shift| 1 << shift).collect();
    let records: Vec<usize> = sizes.iter().copied().filter(|n| *n <= record_max_far(&Config::default()).min(65535)).collect();
    add(&mut model, Way::Eager, &points(Way::Eager, &records));
    add(&mut model, Way::Stream, &points(Way::Stream, &sizes));
    model
}

fn eager_until(selection: &Selection) -> usize {
    selection.rows().iter().filter(|r| r.way() == Way::Eager).map(|r| r.up_to).max().unwrap_or(0)
}

proptest! {
    /// What follows from four numbers leads back to them.
    #[test]
    fn numbers_are_found_again(
        message in 1e3f64..1e5, record_byte in 0.1f64..10.0, in_place in 10f64..1e5, place_byte in 0.05f64..10.0,
    ) {
        let costs = LinkCosts { message, record_byte, in_place, place_byte };
        let found = LinkCosts::fitted(&link(&costs)).expect("enough points");
        for way in [Way::Eager, Way::Stream] {
            for size in [100usize, 1 << 12, 1 << 20] {
                let (a, b) = (costs.cost(way, size).expect("known"), found.cost(way, size).expect("known"));
                prop_assert!((a / b - 1.0).abs() < 1e-6, "{costs:?} {found:?}");
            }
        }
    }

    /// The border is where buffer to buffer becomes cheaper, as far as one record reaches.
    #[test]
    fn the_border_is_where_the_costs_cross(in_place in 200f64..1e5, dear in 0.1f64..2.0) {
        let costs = LinkCosts { message: 1_000.0, record_byte: 0.2 + dear, in_place, place_byte: 0.2 };
        let model = link(&costs);
        let selection = Selection::for_network(&Config::default(), Some(Tuned { model: &model, case: Case::NETWORK }));
        let ns = |way, size| costs.cost(way, size).expect("known");
        for row in selection.rows().iter().filter(|r| r.from > 232) {
            let size = row.from.max(256);
            let best = ns(Way::Stream, size).min(if size <= 30_000 { ns(Way::Eager, size) } else { f64::INFINITY });
            // Tolerance, and points that are joined by straight lines on logarithmic axes.
            prop_assert!(ns(row.way(), size) <= best * 1.15, "{size}: {} in {selection}", row.way().name());
            prop_assert!(!row.way().needs_kernel() && !row.lent);
        }
    }
}

#[test]
fn a_line_never_goes_below_zero() {
    assert_eq!(line(&[(1.0, 5.0)]), None);
    assert_eq!(line(&[(8.0, 5.0), (8.0, 6.0)]), None);
    let (start, rate) = line(&[(1.0, 10.0), (100.0, 5.0)]).expect("two sizes");
    assert!(start > 0.0 && rate == 0.0);
    let (start, rate) = line(&[(10.0, 1.0), (20.0, 40.0)]).expect("two sizes");
    assert!(start == 0.0 && rate > 0.0);
}

#[test]
fn what_the_user_says_counts_before_what_was_measured() {
    let costs = LinkCosts { message: 1_000.0, record_byte: 1.0, in_place: 30_000.0, place_byte: 0.5 };
    let model = link(&costs);
    let tuned = Some(Tuned { model: &model, case: Case::NETWORK });
    let plain = Config::default();
    assert_eq!(eager_until(&Selection::for_network(&plain, None)), 8 << 10);
    let measured = Selection::for_network(&plain, tuned);
    assert!(eager_until(&measured) > 8 << 10 && measured.row(4096).origin == Origin::Profile, "{measured}");
    let set = Config { tcp_eager_max: 1024, ..Config::default() };
    let said = Selection::for_network(&set, tuned);
    assert_eq!((eager_until(&said), said.row(4096).origin), (1024, Origin::Set));
    // The parameter of this host's peers is about them only.
    let other = Config { eager_max: 1024, ..Config::default() };
    assert_eq!(Selection::for_network(&other, None), Selection::for_network(&plain, None));
}

#[test]
fn rows_tell_what_they_cost_and_who_says_so() {
    let selection = Selection::for_network(&Config::default(), None);
    for row in selection.rows() {
        let cost = RowCost::of(row, None).expect("modelled");
        assert!(!cost.measured && cost.from.0 == row.from && cost.to.1 >= cost.from.1 && cost.from.1 > 0.0, "{cost}");
        assert!(cost.to_string().ends_with("modelled"));
    }
    let model = link(&LinkCosts { message: 500.0, ..LinkCosts::SHIPPED });
    let row = selection.row(1000);
    let cost = RowCost::of(&row, Some(&model)).expect("measured");
    assert!(cost.measured && (cost.from.1 - 500.0 - LinkCosts::SHIPPED.record_byte * 256.0).abs() < 1.0, "{cost}");
    assert!(row.what_far(4711).contains("4711") && selection.row(1 << 20).what_far(4711).contains("4711"));
}

/// A link that was measured encrypted is another one than the same in plain, and so with all that times depend on.
#[test]
fn what_was_measured_holds_for_its_settings() {
    let lo = Link { interface: "lo".into(), mtu: Some(65536), speed: None };
    let plain = Config::default();
    let others = [
        Config { encrypt: 1, ..plain.clone() },
        Config { tcp_ring_size: 64 << 10, ..plain.clone() },
        Config { tcp_window: 64 << 10, ..plain.clone() },
        Config { encrypt: 1, tcp_ring_size: 64 << 10, ..plain.clone() },
    ];
    assert_eq!(link_name(&lo, &plain), lo.to_string(), "as it was before they counted");
    let all: Vec<&Config> = others.iter().chain([&plain]).collect();
    let mut profile = Profile {
        best: Vec::new(),
        key: Key::here(&plain),
        kernel_copies: true,
        handover_ns: 100.0,
        model: Model::default(),
        links: Vec::new(),
    };
    for (number, config) in all.iter().enumerate() {
        let costs = LinkCosts { in_place: 1_000.0 + number as f64, ..LinkCosts::SHIPPED };
        profile.set_link(&link_name(&lo, config), link(&costs));
    }
    let profile = Profile::parse(&profile.to_text()).expect("what was written is read");
    assert_eq!(profile.links.len(), all.len(), "none pushes out another one");
    let standing = Standing::InForce("profile.toml".into(), Box::new(profile));
    for config in all {
        let names: Vec<Option<String>> = tables(config, &standing).into_iter().map(|t| t.link).collect();
        assert_eq!(names, [None, Some(link_name(&lo, config))]);
    }
    // Of settings that times do not depend on there is one measurement.
    let other = Config { tcp_eager_max: 1024, peer_timeout: 4711, ..plain };
    assert_eq!(link_name(&lo, &other), lo.to_string());
}
