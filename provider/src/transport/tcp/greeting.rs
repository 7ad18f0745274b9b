//! Hellos, as they come by a connection.

use super::connection::{Connection, Halves};
use super::stop::Stop;
use crate::error::Error;
use crate::peer::name::Name;
use crate::shm::layout::{MAX_RING, MIN_SEGMENT, PAGE};
use crate::shm::{bell, segment};
use crate::sys::tcp;
use crate::transport::{Greeting, Handed};
use crate::wire::hello::{BadHello, Hello, Refusal};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

impl Connection {
    /// Reads the hello; whether that is done.
    pub(super) fn take_hello(&self, halves: &mut Halves) -> bool {
        match halves.incoming.hello(self.stream()) {
            Ok(None) => return false,
            Ok(Some(bytes)) => match greeting(&bytes) {
                Ok(greeting) if halves.origin.as_ref().is_some_and(|origin| origin.crosses(&greeting.hello)) => {
                    halves.crossed = true;
                    halves.ended = Some(Error::PeerGone);
                }
                Ok(greeting) => {
                    if let Handed::Own(theirs) = &greeting.segment {
                        halves.theirs = Some(theirs.clone());
                    }
                    self.may_hurry(halves, &greeting);
                    let by = halves.origin.take().and_then(|origin| origin.by);
                    if let (Some(bundle), Some(by)) = (&mut halves.bundle, by) {
                        bundle.may_yield(Name::call_counts(&greeting.hello.from, &by.to_bytes()));
                    }
                    halves.greeting = Some(greeting);
                }
                Err(why) => {
                    self.foreign.store(Hello::foreign(&bytes).unwrap_or(0), Ordering::Relaxed);
                    halves.crossed = why.is_none();
                    halves.ended = Some(why.unwrap_or(Error::PeerGone));
                }
            },
            Err(stop) => {
                halves.crossed = stop == Stop::Ended && halves.late;
                halves.ended = Some(stop.into());
            }
        }
        true
    }

    /// The other side has called and said hello, before this was made.
    pub(super) fn met(&self, greeting: &Greeting) {
        let mut halves = self.halves.lock();
        self.may_hurry(&mut halves, greeting);
        if let Handed::Own(theirs) = &greeting.segment {
            halves.theirs = Some(theirs.clone());
        }
    }

    /// Says why nothing follows.
    pub(super) fn refuse(&self, halves: &mut Halves, why: Refusal) {
        halves.outgoing.say(Hello::refusal(why).as_bytes());
        let _ = halves.outgoing.flush(self.stream(), false);
        tcp::finish(self.stream().fd());
    }
}

/// Validates a hello, and makes the mirror that it asks for. Else why not; `None`: the other side's call counts.
pub(super) fn greeting(bytes: &[u8]) -> Result<Box<Greeting>, Option<Error>> {
    let hello = match Hello::parse(bytes) {
        Ok(hello) => hello,
        Err(BadHello::Refused(Refusal::Crossed)) => return Err(None),
        Err(BadHello::Version(_)) => return Err(Some(Error::Version)),
        Err(BadHello::Refused(why)) => return Err(Some(why.error())),
        Err(BadHello::Malformed) => return Err(Some(Error::Corrupt)),
    };
    let size = hello.segment.get() as usize;
    if !(MIN_SEGMENT..=MAX_RING).contains(&size) || !size.is_multiple_of(PAGE) {
        return Err(Some(Error::Corrupt));
    }
    let segment = Handed::Own(segment::private(size));
    // Nobody rings it, frames wake by themselves: it takes no memory.
    let bell = Handed::Own(segment::pages(bell::BYTES));
    Ok(Box::new(Greeting { hello, segment, bell }))
}

/// Whether a call with this hello counts if the other side calls, too.
pub(super) fn wins(hello: &Hello) -> bool {
    Name::from_bytes(&hello.to).is_ok_and(|to| to.is_contact() || Name::call_counts(&hello.from, &hello.to))
}
