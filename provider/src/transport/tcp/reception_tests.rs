//! One port, and endpoints that come and go at the same time. Calls to them: `tests/network/one_port.rs`.

use super::*;
use crate::config::network::ZeroCopy;
use crate::peer::name::{Addresses, Name};
use crate::sys::host;
use zerocopy::IntoBytes;

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

/// Nobody looks for long while a caller says his hello: he is heard before he is hung up on. Who has still not said it is not waited for.
#[test]
#[cfg_attr(miri, ignore = "sockets")]
fn who_has_spoken_is_heard_however_late_it_is() {
    let [from, to] = [0; 2].map(|_| Name::new(host::random() | 1, 0, 1, None));
    let who = to.identity().expect("not a contact");
    let office = Arc::new(Office::new(10_000, ZeroCopy::Auto).expect("poller"));
    let terms = Terms { at: here(5), patience: 10_000, ..Terms::default() };
    let reception = Reception::open(&terms, 0, 0, Seat { who, office, inbox: Vec::new() }).expect("a port");
    let there = tcp::own_address(&reception.listeners[0]).expect("a name");
    let hello = Hello::new(from.to_bytes(), to.to_bytes(), 24 << 10, 0, [0; 16]);
    let (first, rest) = hello.as_bytes().split_at(100);
    let callers = [0; 2].map(|_| tcp::connect(there, None, 0).expect("a call"));
    let says = |caller: &OwnedFd, words: &[u8]| {
        while tcp::connected(caller) == Ok(false) {}
        assert_eq!(tcp::send_bytes(caller, words), Ok(words.len()));
        while tcp::unacknowledged(caller) > 0 {}
    };
    let mut events = Vec::new();
    for caller in &callers {
        says(caller, first);
    }
    while reception.hall.lock().strangers.len() < 2 {
        reception.serve(who, &mut events);
    }
    reception.look_after(1, who, &mut events);
    says(&callers[0], rest);
    reception.look_after(2 * HELLO_PATIENCE, who, &mut events);
    let taken = reception.take(who);
    assert_eq!((taken.len(), reception.hall.lock().strangers.len(), events.len()), (1, 0, 0));
    assert!(!tcp::is_hung_up(&callers[0]) && tcp::is_hung_up(&callers[1]));
}
