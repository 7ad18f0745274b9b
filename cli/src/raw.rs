//! What the network allows at best: two plain sockets that spin and do nothing else.

use crate::Failure;
use crate::figures::median;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// One end of a connection.
pub(crate) enum Raw {
    /// Waits to be called.
    Listening(TcpListener),
    Connected(TcpStream),
}

fn fail(e: std::io::Error) -> Failure {
    format!("plain sockets between the two processes: {e}")
}

impl Raw {
    /// Listens where the other one will call. Returns the port.
    pub fn listen(ip: IpAddr) -> Result<(Raw, u16), Failure> {
        let listener = TcpListener::bind((ip, 0)).map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        Ok((Raw::Listening(listener), port))
    }

    /// Calls the other one.
    pub fn call(to: SocketAddr) -> Result<Raw, Failure> {
        Raw::ready(TcpStream::connect(to).map_err(fail)?)
    }

    fn ready(stream: TcpStream) -> Result<Raw, Failure> {
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(fail)?;
        Ok(Raw::Connected(stream))
    }

    fn stream(&mut self) -> Result<&mut TcpStream, Failure> {
        if let Raw::Listening(listener) = self {
            *self = Raw::ready(listener.accept().map_err(fail)?.0)?;
        }
        match self {
            Raw::Connected(stream) => Ok(stream),
            Raw::Listening(_) => Err("nobody called".into()),
        }
    }

    /// `times` messages of `len` bytes there, one byte back after each `burst`: the median nanoseconds of a burst and its answer.
    pub fn ask(&mut self, buffer: &mut [u8], burst: usize, times: usize) -> Result<f64, Failure> {
        let stream = self.stream()?;
        let mut took = Vec::with_capacity(times);
        for i in 0..=times {
            let begun = Instant::now();
            for _ in 0..burst {
                all(buffer, |rest| stream.write(rest))?;
            }
            all(&mut [0], |rest| stream.read(rest))?;
            took.extend((i > 0).then(|| begun.elapsed().as_secs_f64() * 1e9));
        }
        Ok(median(&took))
    }

    /// The other side of [`ask`](Self::ask).
    pub fn answer(&mut self, buffer: &mut [u8], burst: usize, times: usize) -> Result<(), Failure> {
        let stream = self.stream()?;
        for _ in 0..=times {
            for _ in 0..burst {
                all(buffer, |rest| stream.read(rest))?;
            }
            all(&mut [1], |rest| stream.write(rest))?;
        }
        Ok(())
    }
}

/// Moves all bytes, spinning.
fn all(bytes: &mut [u8], mut some: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> Result<(), Failure> {
    let mut done = 0;
    while done < bytes.len() {
        match some(&mut bytes[done..]) {
            Ok(0) => return Err(fail(ErrorKind::UnexpectedEof.into())),
            Ok(n) => done += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => std::hint::spin_loop(),
            Err(e) => return Err(fail(e)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_answered() {
        let (mut second, port) = Raw::listen([127, 0, 0, 1].into()).expect("a port");
        let mut first = Raw::call(([127, 0, 0, 1], port).into()).expect("called");
        let answers = std::thread::spawn(move || second.answer(&mut [0; 70_000], 3, 4));
        assert!(first.ask(&mut [7; 70_000], 3, 4).expect("answered") > 0.0);
        answers.join().expect("ended").expect("all came");
        // It is gone now.
        assert!(first.ask(&mut [7; 70_000], 300, 1).is_err());
    }
}
