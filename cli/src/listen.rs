//! `rustmx compare --listen`: waits for a `rustmx compare --to` or `rustmx tune --to` of another host, and does its part of one measurement.

use crate::Failure;
use crate::partner::GREETING;
use crate::work::Worker;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// How long a caller may say nothing.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where to wait: a port, or an address and a port.
pub(crate) fn place(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse::<u16>().map(|port| SocketAddr::from(([0u16; 8], port)));
    port.or_else(|_| text.parse()).map_err(|_| "a port, or an address and a port, as in 7000 or 192.0.2.1:7000".into())
}

/// Waits for one caller, and serves it.
///
/// # Errors
/// What went wrong.
pub(crate) fn run(at: SocketAddr) -> Result<(), Failure> {
    let fail = |e: std::io::Error| format!("cannot wait at {at} ({e}); choose another port");
    // Where there is no IPv6, the unspecified address is the other one.
    let listener = TcpListener::bind(at).or_else(|e| match at.ip().is_unspecified() {
        true => TcpListener::bind(SocketAddr::from(([0u8; 4], at.port()))),
        false => Err(e),
    });
    let listener = listener.map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.port();
    eprintln!(
        "rustmx: waiting at port {port} for `rustmx compare --to HOST:{port}` or `rustmx tune --to HOST:{port}` of another host"
    );
    loop {
        let (stream, from) = listener.accept().map_err(fail)?;
        let ready = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
        let (Ok(()), Ok(mut out)) = (ready, stream.try_clone()) else { continue };
        let mut orders = BufReader::new(stream);
        let mut greeting = String::new();
        // No more than a greeting is read of who says something else.
        let read = std::io::Read::take(&mut orders, 2 * GREETING.len() as u64).read_line(&mut greeting);
        let known = read.is_ok() && greeting.trim_end() == GREETING;
        if out.write_all(format!("{GREETING}\n").as_bytes()).is_err() || !known {
            eprintln!("rustmx: {from} is not the same version of this program, or something else; still waiting");
            continue;
        }
        eprintln!("rustmx: measuring for {from}");
        return Worker::for_others().serve(false, &mut orders, &mut out);
    }
}
