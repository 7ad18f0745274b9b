//! What the network allows at best: two plain sockets that spin and do nothing else. A connection says nothing when the network is cut, so whoever
//! waits looks whether somebody else knows that the other end is gone.

use crate::Failure;
use crate::figures::median;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long it may take to reach the other end.
const REACHED: Duration = Duration::from_secs(10);

/// One end of a connection.
pub(crate) struct Raw {
    socket: Socket,
    /// Set by somebody else: the other end is gone.
    gone: Arc<AtomicBool>,
}

enum Socket {
    /// Waits to be called.
    Listening(TcpListener),
    Connected(TcpStream),
}

fn fail(e: std::io::Error) -> Failure {
    format!("plain sockets between the two processes: {e}")
}

impl Raw {
    /// Listens where the other one will call, until that is `gone`. Returns the port.
    pub fn listen(at: SocketAddr, gone: Arc<AtomicBool>) -> Result<(Raw, u16), Failure> {
        let listener = TcpListener::bind(at).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        Ok((Raw { socket: Socket::Listening(listener), gone }, port))
    }

    /// Calls the other one.
    pub fn call(to: SocketAddr) -> Result<Raw, Failure> {
        let socket = ready(TcpStream::connect_timeout(&to, REACHED).map_err(fail)?)?;
        Ok(Raw { socket, gone: Arc::default() })
    }

    /// The connection, once there is one.
    fn stream(&mut self) -> Result<(&mut TcpStream, &AtomicBool), Failure> {
        while let Socket::Listening(listener) = &self.socket {
            match listener.accept() {
                Ok((stream, _)) => self.socket = ready(stream)?,
                Err(e) => pause(e, &self.gone)?,
            }
        }
        match &mut self.socket {
            Socket::Connected(stream) => Ok((stream, &self.gone)),
            Socket::Listening(_) => Err("nobody called".into()),
        }
    }

    /// `times` messages of `len` bytes there, one byte back after each `burst`: the median nanoseconds of a burst and its answer.
    pub fn ask(&mut self, buffer: &mut [u8], burst: usize, times: usize) -> Result<f64, Failure> {
        let (stream, gone) = self.stream()?;
        let mut took = Vec::with_capacity(times);
        for i in 0..=times {
            let begun = Instant::now();
            for _ in 0..burst {
                all(buffer, gone, |rest| stream.write(rest))?;
            }
            all(&mut [0], gone, |rest| stream.read(rest))?;
            took.extend((i > 0).then(|| begun.elapsed().as_secs_f64() * 1e9));
        }
        Ok(median(&took))
    }

    /// The other side of [`ask`](Self::ask).
    pub fn answer(&mut self, buffer: &mut [u8], burst: usize, times: usize) -> Result<(), Failure> {
        let (stream, gone) = self.stream()?;
        for _ in 0..=times {
            for _ in 0..burst {
                all(buffer, gone, |rest| stream.read(rest))?;
            }
            all(&mut [1], gone, |rest| stream.write(rest))?;
        }
        Ok(())
    }
}

fn ready(stream: TcpStream) -> Result<Socket, Failure> {
    stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(fail)?;
    Ok(Socket::Connected(stream))
}

/// A call found nothing to do, or failed.
fn pause(why: std::io::Error, gone: &AtomicBool) -> Result<(), Failure> {
    match why.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted if gone.load(Ordering::Acquire) => Err("the other end is gone".into()),
        ErrorKind::WouldBlock | ErrorKind::Interrupted => {
            std::hint::spin_loop();
            Ok(())
        }
        _ => Err(fail(why)),
    }
}

/// Moves all bytes, spinning.
fn all(bytes: &mut [u8], gone: &AtomicBool, mut some: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> Result<(), Failure> {
    let mut done = 0;
    while done < bytes.len() {
        match some(&mut bytes[done..]) {
            Ok(0) => return Err(fail(ErrorKind::UnexpectedEof.into())),
            Ok(n) => done += n,
            Err(e) => pause(e, gone)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_answered() {
        let (mut second, port) = Raw::listen(([127, 0, 0, 1], 0).into(), Arc::default()).expect("a port");
        let mut first = Raw::call(([127, 0, 0, 1], port).into()).expect("called");
        let answers = std::thread::spawn(move || second.answer(&mut [0; 70_000], 3, 4));
        assert!(first.ask(&mut [7; 70_000], 3, 4).expect("answered") > 0.0);
        answers.join().expect("ended").expect("all came");
        // It is gone now.
        assert!(first.ask(&mut [7; 70_000], 300, 1).is_err());
    }

    /// Nobody calls; or somebody does, and says nothing any more, as when the network is cut.
    #[test]
    fn who_waits_for_nobody_ends() {
        for called in [false, true] {
            let gone = Arc::new(AtomicBool::new(false));
            let (mut waiting, port) = Raw::listen(([127, 0, 0, 1], 0).into(), gone.clone()).expect("a port");
            let silent = called.then(|| TcpStream::connect(("127.0.0.1", port)).expect("called"));
            let waits = std::thread::spawn(move || waiting.answer(&mut [0; 100], 1, 1));
            gone.store(true, Ordering::Release);
            let why = waits.join().expect("ended").expect_err("nobody said anything");
            assert!(why.contains("is gone"), "{why}");
            drop(silent);
        }
    }
}
