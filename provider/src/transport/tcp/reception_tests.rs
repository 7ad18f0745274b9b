//! One port, and endpoints that come and go at the same time. Calls to them: `tests/network/one_port.rs`.

use super::*;
use crate::config::network::ZeroCopy;
use crate::peer::name::{Addresses, Name};
use crate::sys::host;

/// A port that nobody has, outside of those that the kernel gives to whoever asks for any, and of those that other tests take.
fn port() -> u16 {
    let listens = |port: &u16| tcp::listen(([127, 0, 0, 1], *port).into()).is_ok();
    std::iter::repeat_with(|| 30_500 + (host::random() % 2_000) as u16).take(1000).find(listens).expect("a free port")
}

fn here(last: u8) -> Addresses {
    [([127, 0, 0, last].into(), 0)].into_iter().collect()
}

fn somebody() -> Identity {
    Name::new(host::random() | 1, 0, 1, None).identity().expect("not a contact")
}

/// The last one closes the listener while another one looks for it: whoever comes finds a listener or makes one, and the port is never
/// in use by nobody.
#[test]
fn who_comes_while_the_last_one_goes_has_the_port() {
    // Closed outside of the lock, the listener is met by someone in one run of some three.
    const ROUNDS: usize = if cfg!(miri) { 3 } else { 30_000 };
    let port = port();
    let terms = Terms { at: here(1), ports: Some(port..=port), patience: 10_000, ..Terms::default() };
    let office = Arc::new(Office::new(10_000, ZeroCopy::Auto).expect("poller"));
    let (mut first, mut shared) = (0, 0);
    std::thread::scope(|s| {
        let come_and_go = || {
            let (mut first, mut shared) = (0, 0);
            for round in 0..ROUNDS {
                let place = Place::take(&terms, 0, 0, somebody(), &office).unwrap_or_else(|why| panic!("round {round}: {why}"));
                assert_eq!(place.port(), port);
                if place.endpoints() > 1 { shared += 1 } else { first += 1 }
            }
            (first, shared)
        };
        for thread in [0; 2].map(|_| s.spawn(come_and_go)) {
            let counts = thread.join().expect("no panic");
            (first, shared) = (first + counts.0, shared + counts.1);
        }
    });
    eprintln!("{first} were alone, {shared} not");
    assert_eq!(first + shared, 2 * ROUNDS);
    assert!(ALL.lock().iter().filter_map(Weak::upgrade).all(|reception| reception.terms != terms), "nobody is left");
}

/// Processes open and close endpoints while others start: who finds all ports of a range in use, one after the other, may have met the same process twice.
#[test]
#[cfg_attr(miri, ignore = "sockets of several threads")]
fn as_many_ports_as_processes_are_enough() {
    const ROUNDS: usize = 20_000;
    let first = port();
    let terms = Terms { at: here(2), ports: Some(first..=first + 1), ..Terms::default() };
    let come_and_go = || (0..ROUNDS).filter(|_| listen(&terms, 0, host::random() as u16).is_err()).count();
    let refused: usize =
        std::thread::scope(|s| [0; 2].map(|_| s.spawn(come_and_go)).map(|t| t.join().expect("no panic")).iter().sum());
    assert_eq!(refused, 0, "of {ROUNDS} rounds");
}

/// One port of several addresses: another one if somebody has it at any of them; and an address that is none does not matter, if there is another one.
#[test]
#[cfg_attr(miri, ignore = "addresses of sockets")]
fn one_port_of_several_addresses() {
    let of =
        |listeners: &[OwnedFd]| -> Vec<SocketAddr> { listeners.iter().map(|fd| tcp::own_address(fd).expect("a name")).collect() };
    let nobodys = (IpAddr::from([203, 0, 113, 7]), 0);
    let at: Addresses = [here(3)[0], nobodys, here(4)[0]].into_iter().collect();
    let first = port();
    let there = [3, 4].map(|last| SocketAddr::from(([127, 0, 0, last], first)));
    let ports = |last| Some(first..=last);
    let terms = |ports| Terms { at: at.clone(), ports, ..Terms::default() };
    assert_eq!(of(&listen(&terms(None), first, 0).expect("both")), there);
    // Somebody is at the second one.
    let other = tcp::listen(there[1]).expect("the port was free");
    assert_eq!(listen(&terms(None), first, 0).err(), Some(Errno::ADDRINUSE));
    let next = of(&listen(&terms(ports(first + 20)), 0, 0).expect("the next port"));
    assert!(next.len() == 2 && next[0].port() == next[1].port() && next[0].port() > first, "{next:?}");
    drop(other);
    let any = of(&listen(&terms(None), 0, 0).expect("any port"));
    assert!(any.len() == 2 && any[0].port() == any[1].port(), "{any:?}");
    assert_eq!(listen_at(&[nobodys], 0).err(), Some(Errno::ADDRNOTAVAIL));
}
