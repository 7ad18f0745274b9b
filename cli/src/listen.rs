//! `rustmx compare --listen`: waits for a `rustmx compare --to` or `rustmx tune --to` of another host, and does its part of one measurement.

use crate::Failure;
use crate::partner::{END, GREETING, line_of, prepare};
use crate::work::Worker;
use rustmx::log::tell;
use rustmx::sys::ports;
use std::io::{BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// How long a caller may take to greet: the next one waits meanwhile.
const GREETED: Duration = Duration::from_secs(5);

/// How long a caller may say nothing while nothing is measured.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest order, in bytes: the names of a few endpoints.
const LONGEST_ORDER: u64 = 64 << 10;

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
    let fail = |e: std::io::Error| {
        let root = ports::reserved(at.port()).filter(|_| e.kind() == ErrorKind::PermissionDenied && at.port() != 0);
        let why = root.map_or(String::new(), |why| format!("; {why}"));
        format!("cannot wait at {at} ({e}{why}); choose another port")
    };
    // Where there is no IPv6, the unspecified address is the other one.
    let listener = TcpListener::bind(at).or_else(|e| match at.ip().is_unspecified() {
        true => TcpListener::bind(SocketAddr::from(([0u8; 4], at.port()))),
        false => Err(e),
    });
    let listener = listener.map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.port();
    tell(
        "rustmx",
        &format!(
            "waiting at port {port} for `rustmx compare --to HOST:{port}` or `rustmx tune --to HOST:{port}` of another host"
        ),
    );
    loop {
        let (stream, from) = listener.accept().map_err(fail)?;
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let ready = prepare(&stream).and_then(|()| stream.set_read_timeout(Some(GREETED)));
        let (Ok(()), Ok(mut out)) = (ready, stream.try_clone()) else { continue };
        let mut orders = BufReader::new(stream);
        // No more than a greeting is read of who says something else.
        let known = line_of(&mut orders, 2 * GREETING.len() as u64).is_some_and(|said| said == GREETING);
        if out.write_all(format!("{GREETING}\n").as_bytes()).is_err() || !known {
            tell("rustmx", &format!("{from} is not the same version of this program, or something else; still waiting"));
            continue;
        }
        tell("rustmx", &format!("measuring for {from}"));
        orders.get_ref().set_read_timeout(None).map_err(fail)?;
        // Who works polls its endpoint and not this connection; a thread of its own sees at once that the caller is gone.
        let gone = Arc::new(AtomicBool::new(false));
        // A caller waits for an answer before it says more than this.
        let (tell, told) = mpsc::sync_channel(4);
        let seen = gone.clone();
        std::thread::spawn(move || {
            while let Some(order) = line_of(&mut orders, LONGEST_ORDER) {
                if tell.send(order).is_err() {
                    break;
                }
            }
            seen.store(true, Ordering::Release);
        });
        let mut ended = false;
        let orders = std::iter::from_fn(|| told.recv_timeout(PATIENCE).ok()).take_while(|order| {
            ended = order == END;
            !ended
        });
        const HELPS: &str = "was its command ended, or the network between cut? Start this one again";
        return match Worker::for_others(gone).serve(false, orders, &mut out) {
            Ok(()) if ended => Ok(()),
            Ok(()) => Err(format!("{from} is gone and has not said that it is through; {HELPS}")),
            Err(why) => Err(format!("measuring for {from} ended early ({why}); {HELPS}")),
        };
    }
}
