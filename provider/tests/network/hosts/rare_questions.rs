//! A kernel that asks a peer without room less and less often (before Linux 6.15; here one that is made to not know the option against that): the host of
//! such a peer is asked by ICMP.

use super::Lab;
use crate::common::process::{Copy, follow_parent, hear, role, say};
use crate::common::{Deadline, Msg, Node, Want, attr, pattern, watchdog};
use crate::filter::refuse_option;
use rustmx::{Config, Error, Name, OpFlags};
use std::time::{Duration, Instant};

/// Milliseconds; and beyond that, for a look and a busy machine. The kernel's next question comes later than both.
const PATIENCE: u64 = 5000;
const SLACK: u64 = 2000;
/// `TCP_RTO_MAX_MS` of linux/tcp.h.
const OPTION: i32 = 44;
/// `IPPROTO_TCP`.
const LEVEL: i32 = 6;
/// After so long such a kernel asks for the next time more than 8 seconds later: it did after 12.6 s for a round trip's bound of 200 ms, and does after 25.4.
const CALM: Duration = Duration::from_secs(17);

const ROLES: &str = "hosts::rare_questions::role_of_a_host";

fn config() -> Config {
    Config { shm: 0, peer_timeout: PATIENCE, ..Config::default() }
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn role_of_a_host() {
    let Some(words) = role() else { return };
    refuse_option(LEVEL, OPTION);
    match words[0].as_str() {
        "sleeper" => sleeper(),
        _ => sender(&words[1]),
    }
}

/// Answers first contact, and then reads nothing any more.
fn sleeper() {
    let mut node = Node::with(config(), attr());
    let mut into = [0; 8];
    node.recv(Want::tag(0), &mut into).expect("recv");
    say(&node.name().to_string());
    let until = Deadline::new(20);
    while node.poll().is_empty() {
        until.check(|| "nobody calls".into());
    }
    // What is acknowledged leaves.
    node.quiet(2000);
    say("asleep");
    follow_parent();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Sends more than there is room for, says that the peer is not taken for gone as long as it only sleeps, and then how long it took until it was.
fn sender(name: &str) {
    let mut node = Node::with(config(), attr());
    let name: Name = name.parse().expect("a name");
    let to = node.av.insert(&name);
    let mut out = pattern(32 << 20, 1);
    node.send(Msg::new(to, 0).with(OpFlags::DELIVERY_COMPLETE), &mut [1; 8]).expect("send");
    let until = Deadline::new(20);
    while node.poll().is_empty() {
        until.check(|| "no contact".into());
    }
    // Until the other one looks no more.
    hear();
    node.send(Msg::new(to, 1), &mut out).expect("send");
    let calm = Instant::now() + CALM;
    while Instant::now() < calm {
        let events = node.poll();
        assert!(events.is_empty(), "who only sleeps is not gone: {events:?}");
    }
    say("calm");
    hear();
    let (start, until) = (Instant::now(), Deadline::new(60));
    let (mut last, mut away) = (start, Duration::ZERO);
    // Nobody is found silent by what he was not asked: the time does not count in which this machine gives us no core.
    let mut looked = || {
        let pause = last.elapsed();
        last += pause;
        away += if pause > Duration::from_secs(1) { pause } else { Duration::ZERO };
        away
    };
    let away = loop {
        let found = node.poll().pop();
        let away = looked();
        if let Some(event) = found {
            let e = event.expect_err("nobody read it");
            assert!(e.error == Error::Silent && e.peer == Some(name), "{e:?}");
            break away;
        }
        until.check(|| "nothing is noticed".into());
    };
    say(&(start.elapsed() - away).as_millis().to_string());
}

/// Who is told to send on a host that may ask, and a peer on another one that reads nothing.
fn without_room(lab: &Lab, [from, to]: [&str; 2]) -> [Copy; 2] {
    lab.run_on(from, "echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range");
    let mut sleeper = lab.play(ROLES, &["exec", to], "sleeper");
    let sender = lab.play(ROLES, &["exec", from], &format!("sender {}", sleeper.hear()));
    assert_eq!(sleeper.hear(), "asleep");
    [sender, sleeper]
}

/// That the sender, on this host, notices in time.
fn notices(lab: &Lab, sender: &mut Copy, host: &str) {
    let took: u64 = sender.hear().parse().expect("milliseconds");
    // Questions and answers, calls and what became of them.
    let seen = || {
        lab.run_on(
            host,
            "ip -s neigh; grep -E '^(Icmp|Tcp):' /proc/net/snmp; grep -E '^Icmp6(In|Out)(Echo|Dest)' /proc/net/snmp6; ss -tino",
        )
    };
    assert!(took <= PATIENCE + SLACK, "noticed after {took} ms: {}", seen());
    eprintln!("noticed after {took} ms");
}

#[test]
fn a_host_that_answers_pings_is_noticed_in_time_when_it_goes() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let _dog = watchdog("rare_questions", 100);
    // The second host answers no pings: its silence proves nothing, and nobody is taken for gone.
    for answers in [true, false] {
        lab.run_on("h2", &format!("echo {} > /proc/sys/net/ipv4/icmp_echo_ignore_all", u8::from(!answers)));
        let [mut sender, _sleeper] = without_room(&lab, ["h1", "h2"]);
        sender.tell("go");
        assert_eq!(sender.hear(), "calm");
        if answers {
            lab.say(&["drop", "h2", "on"]);
            sender.tell("go");
            notices(&lab, &mut sender, "h1");
            lab.say(&["mend", "h2"]);
        }
    }
}

/// Then the kernel knows that nobody is there, and says so to who calls, once for each call: that is no answer of that host.
#[test]
fn a_neighbour_whose_card_is_not_found_any_more_is_noticed_in_time() {
    let Some(lab) = Lab::up(&["--hosts", "4", "--dual"]) else { return };
    let _dog = watchdog("rare_questions_of_neighbours", 100);
    let pairs = [("ipv4", "-6", ["h1", "h2"]), ("ipv6", "-4", ["h3", "h4"])];
    let mut copies = pairs.map(|(family, other, hosts)| {
        for host in hosts {
            lab.run_on(host, &format!("ip {other} addr flush dev eth0"));
        }
        // As a rule the kernel looks for a card for three seconds; here a call is to fail more than once before the peer counts as gone.
        lab.run_on(hosts[0], &format!("echo 250 > /proc/sys/net/{family}/neigh/eth0/retrans_time_ms"));
        without_room(&lab, hosts)
    });
    copies.iter_mut().for_each(|[sender, _]| sender.tell("go"));
    copies.iter_mut().for_each(|[sender, _]| assert_eq!(sender.hear(), "calm"));
    for ((.., [from, to]), [sender, _]) in pairs.iter().zip(&mut copies) {
        lab.say(&["drop", to, "on"]);
        // What is known of a card holds for some seconds, and then a call would just get no answer.
        lab.run_on(from, "ip neigh flush dev eth0");
        sender.tell("go");
    }
    for ((.., [from, _]), [sender, _]) in pairs.iter().zip(&mut copies) {
        notices(&lab, sender, from);
        let known = lab.run_on(from, "ip neigh show dev eth0");
        assert!(["FAILED", "INCOMPLETE"].iter().any(|state| known.contains(state)), "{known}");
    }
}
