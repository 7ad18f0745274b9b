//! Cables between engines that reach each other by TCP: what goes through one comes out in pieces of any length, late, at times nothing for a while; or it
//! is cut.

use crate::common::{Node, Rng};
use rustix::net::sockopt::set_socket_linger;
use rustmx::Name;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Bytes that a cable holds in each direction.
const HOLDS: usize = 64 << 10;

/// Where one engine finds another one.
struct Plug {
    from: usize,
    to: usize,
    listener: TcpListener,
    place: SocketAddr,
}

/// A connection, by way of here.
struct Cable {
    between: [usize; 2],
    ends: [TcpStream; 2],
    /// What came in at each end and did not come out at the other one yet.
    holds: [VecDeque<u8>; 2],
    /// An end that says nothing more.
    ended: [bool; 2],
    /// Turns for which nothing comes out.
    stalled: [u64; 2],
}

impl Cable {
    /// Whether it is of use any more.
    fn pass(&mut self, rng: &mut Rng) -> bool {
        (0..2).all(|end| self.pass_from(end, rng).is_ok())
    }

    fn pass_from(&mut self, end: usize, rng: &mut Rng) -> std::io::Result<()> {
        let later = |e: std::io::Error| if e.kind() == ErrorKind::WouldBlock { Ok(0) } else { Err(e) };
        let piece = |rng: &mut Rng| rng.pick(&[1, 7, 100, 4 << 10, 32 << 10]);
        let (hold, other) = (&mut self.holds[end], 1 - end);
        let room = HOLDS - hold.len();
        if !self.ended[end] && room > 0 {
            let mut bytes = vec![0; piece(rng).min(room)];
            match self.ends[end].read(&mut bytes) {
                Ok(0) => self.ended[end] = true,
                read => hold.extend(&bytes[..read.or_else(later)?]),
            }
            if self.ended[end] && hold.is_empty() {
                let _ = self.ends[other].shutdown(Shutdown::Write);
            }
        }
        if self.stalled[end] > 0 {
            self.stalled[end] -= 1;
            return Ok(());
        }
        if rng.one_in(60) {
            self.stalled[end] = rng.below(50);
        }
        if hold.is_empty() {
            return Ok(());
        }
        let (front, _) = hold.as_slices();
        let written = self.ends[other].write(&front[..piece(rng).min(front.len())]).or_else(later)?;
        hold.drain(..written);
        if self.ended[end] && hold.is_empty() {
            self.ends[other].shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}

#[derive(Default)]
pub struct Wires {
    plugs: Vec<Plug>,
    cables: Vec<Cable>,
}

impl Wires {
    /// The name of `engine` (number `to`) for number `from`.
    pub fn plug(&mut self, from: usize, to: usize, engine: &Node) -> Name {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
        listener.set_nonblocking(true).expect("nonblocking");
        let (here, name) = (listener.local_addr().expect("address"), engine.name());
        let place = SocketAddr::new(name.ip().to_canonical(), name.port());
        self.plugs.push(Plug { from, to, listener, place });
        name.at(&[(here.ip(), 0)], here.port())
    }

    /// Whether there are cables.
    pub fn any(&self) -> bool {
        !self.plugs.is_empty()
    }

    /// Carries something of what waits.
    pub fn pass(&mut self, rng: &mut Rng) {
        for plug in &self.plugs {
            while let Ok((caller, _)) = plug.listener.accept() {
                // Who has closed is not there.
                let Ok(callee) = TcpStream::connect(plug.place) else { continue };
                let ends = [caller, callee];
                ends.iter().for_each(|end| end.set_nonblocking(true).and_then(|()| end.set_nodelay(true)).expect("set"));
                let between = [plug.from, plug.to];
                self.cables.push(Cable { between, ends, holds: Default::default(), ended: [false; 2], stalled: [0; 2] });
            }
        }
        self.cables.retain_mut(|cable| cable.pass(rng));
    }

    /// All between two engines ends: what is on the way is lost, and they hear of it by an end or by a reset.
    pub fn cut(&mut self, a: usize, b: usize, reset: bool) {
        let doomed = self.cables.extract_if(.., |cable| cable.between == [a, b] || cable.between == [b, a]);
        for cable in doomed.filter(|_| reset) {
            for end in &cable.ends {
                set_socket_linger(end, Some(Duration::ZERO)).expect("SO_LINGER");
            }
        }
    }
}
