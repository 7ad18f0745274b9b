//! Both sides of a connection prove that they know the job's key, before either says hello (`docs/adr/0020-keys.md`).
//!
//! The Noise protocol (revision 34), pattern NNpsk0: neither has a name of its own, both have the key. The third message is an empty one
//! under the keys that come out of that: whoever repeats what he has heard on the network can send the first one, but not this one.
//!
//! ```text
//! caller                                        listener
//!   head, e, psk ─────────────────────────────▶ knows the key? else a refusal, and the end
//!         ◀───────────────────────────────────── head, e, ee
//!   knows the key; confirmation ──────────────▶ is alive: who only repeats ends here
//!   hello … (encrypted, or as it is)
//! ```
//! Heads are those of `wire/key.rs`; what is agreed on by them is part of what is proved. If both call at the same moment from the ports that they listen at, there
//! is one connection and two callers on it: the smaller of their first messages counts, and who has sent the other one answers it.

use super::session::Session;
use crate::error::Error;
use crate::sys::tcp;
use crate::wire::hello::{HELLO_LEN, Hello, Refusal};
use crate::wire::key::{Key, PROOF_HEAD, Proof};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, TransportState};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// What is used of the Noise protocol.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes of each of the two messages: a public key, and the proof of an empty text.
const MESSAGE: usize = 32 + TAG;
/// Bytes that encryption adds to a text.
pub(super) const TAG: usize = 16;
/// Who hangs up on us without a word after so long has waited for our last message: we computed.
const LONG: Duration = Duration::from_secs(1);

/// What the key of a job demands of connections.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The key.
    pub key: Key,
    /// Everything is encrypted.
    pub encrypt: bool,
}

/// Why a connection is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unproved {
    /// The other side is gone.
    Ended,
    /// It lost patience while we computed: a new call may go through.
    TooLate,
    /// It is no rustmx.
    Garbage,
    /// It is none of the job. The other side knows.
    Error(Error),
}

impl PartialEq for Guard {
    fn eq(&self, other: &Guard) -> bool {
        self.encrypt == other.encrypt && self.key.shared() == other.key.shared()
    }
}

enum At {
    /// The other side's head and message are to come.
    Message(Box<HandshakeState>),
    /// The caller's confirmation is to come.
    Confirmation(Box<TransportState>),
    /// Only what is in `out` is still to leave.
    Leaving(Box<TransportState>),
    /// It did not succeed, or the outcome was taken.
    Over,
}

/// A proof that is being made, on both sides.
pub(super) struct Handshake {
    at: At,
    calls: bool,
    encrypt: bool,
    out: Vec<u8>,
    came: Vec<u8>,
    since: Instant,
    /// What we have said as a caller, until there was an answer.
    said: Option<Box<Said>>,
}

/// What a caller has said first, and by what.
struct Said {
    guard: Guard,
    message: [u8; MESSAGE],
}

/// Two callers on one connection.
struct Crossing {
    /// What answers the other one.
    theirs: HandshakeState,
    ours_counts: bool,
}

impl Handshake {
    /// On a connection that we called (`calls`), or that we were called by.
    ///
    /// # Errors
    /// [`Error::NoResources`]: the kernel gives no random numbers.
    pub fn new(guard: &Guard, calls: bool) -> Result<Handshake, Error> {
        let (at, encrypt, since) = (At::Over, guard.encrypt, Instant::now());
        let mut handshake = Handshake { at, calls, encrypt, out: Vec::new(), came: Vec::new(), since, said: None };
        let mut noise = noise(guard, calls).map_err(|_| Error::NoResources)?;
        if calls {
            let message = handshake.write(&mut noise).map_err(|_| Error::NoResources)?;
            handshake.said = Some(Box::new(Said { guard: guard.clone(), message }));
        }
        handshake.at = At::Message(Box::new(noise));
        Ok(handshake)
    }

    /// Our head and message.
    fn write(&mut self, noise: &mut HandshakeState) -> Result<[u8; MESSAGE], snow::Error> {
        let mut message = [0; MESSAGE];
        let len = noise.write_message(&[], &mut message)?;
        self.out.extend(head(self.encrypt));
        self.out.extend(&message[..len]);
        Ok(message)
    }

    /// Goes on, as far as the socket lets it. `None`: not done yet; else what encrypts from now on, if anything does.
    ///
    /// # Errors
    /// [`Unproved`].
    pub fn step(&mut self, fd: &OwnedFd) -> Result<Option<Option<Session>>, Unproved> {
        loop {
            // Who hung up may have said why.
            let left = self.leave(fd);
            match std::mem::replace(&mut self.at, At::Over) {
                At::Over => return Err(Unproved::Ended),
                At::Leaving(noise) if self.out.is_empty() => {
                    return Ok(Some(self.encrypt.then(|| Session::new(*noise))));
                }
                At::Leaving(noise) => {
                    self.at = At::Leaving(noise);
                    return left.map(|()| None).map_err(|_| Unproved::Ended);
                }
                At::Message(noise) => match self.hear_message(fd)? {
                    true => self.at = self.message(fd, noise)?,
                    false => {
                        self.at = At::Message(noise);
                        return Ok(None);
                    }
                },
                At::Confirmation(noise) => match self.hear(fd, TAG)? {
                    true => self.at = self.confirmation(noise)?,
                    false => {
                        self.at = At::Confirmation(noise);
                        return Ok(None);
                    }
                },
            }
        }
    }

    fn leave(&mut self, fd: &OwnedFd) -> Result<(), Errno> {
        while !self.out.is_empty() {
            match tcp::send_bytes(fd, &self.out) {
                Ok(n) => _ = self.out.drain(..n),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Reads the other side's head and message; whether they are all here. The head is judged before anything else is read.
    fn hear_message(&mut self, fd: &OwnedFd) -> Result<bool, Unproved> {
        let head = self.hear(fd, PROOF_HEAD)?;
        self.check_head(fd)?;
        Ok(head && self.hear(fd, PROOF_HEAD + MESSAGE)?)
    }

    /// Reads until `whole` bytes are here; whether they are. Not one more: they are not ours.
    fn hear(&mut self, fd: &OwnedFd, whole: usize) -> Result<bool, Unproved> {
        let mut bytes = [0; PROOF_HEAD + MESSAGE];
        while self.came.len() < whole {
            match tcp::recv_bytes(fd, &mut bytes[..whole - self.came.len()]) {
                Ok(0) | Err(Errno::CONNRESET | Errno::PIPE) => return Err(self.hung_up()),
                Ok(n) => self.came.extend(&bytes[..n]),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Unproved::Ended),
            }
        }
        Ok(true)
    }

    /// Whether the caller's first message was right, and its confirmation is to come.
    pub fn is_half_made(&self) -> bool {
        matches!(self.at, At::Confirmation(_))
    }

    /// Whether we called, and it took so long that the other side may have lost patience.
    pub fn is_late(&self) -> bool {
        self.calls && self.since.elapsed() >= LONG
    }

    fn hung_up(&self) -> Unproved {
        if self.is_late() { Unproved::TooLate } else { Unproved::Ended }
    }

    /// As much of the head as is here.
    fn check_head(&mut self, fd: &OwnedFd) -> Result<(), Unproved> {
        if Proof::may_begin(&self.came) {
            return match self.came.first_chunk().copied() {
                Some(head) => self.check_whole_head(fd, head),
                None => Ok(()),
            };
        }
        // Who says hello at once, or answers with one, has no key.
        if Hello::may_begin(&self.came) {
            return Err(self.refuse(fd, Hello::refusal(Refusal::KeyMissing).as_bytes(), Error::KeyUnknown));
        }
        Err(Unproved::Garbage)
    }

    fn check_whole_head(&mut self, fd: &OwnedFd, head: [u8; PROOF_HEAD]) -> Result<(), Unproved> {
        match Proof::parse(head) {
            Some(Proof::Follows { encrypted }) if encrypted == self.encrypt => Ok(()),
            Some(Proof::Follows { .. }) => {
                let refusal = Proof::Refused(Refusal::EncryptionDiffers).emit();
                Err(self.refuse(fd, &refusal, Error::EncryptionDiffers))
            }
            Some(Proof::Refused(why)) if self.calls => Err(Unproved::Error(why.error())),
            _ => Err(Unproved::Garbage),
        }
    }

    /// Tells the other side, which called, why it is not talked to.
    fn refuse(&mut self, fd: &OwnedFd, words: &[u8], why: Error) -> Unproved {
        if !self.calls {
            refuse(fd, words);
        }
        Unproved::Error(why)
    }

    fn message(&mut self, fd: &OwnedFd, mut noise: Box<HandshakeState>) -> Result<At, Unproved> {
        let came = std::mem::take(&mut self.came);
        if noise.read_message(&came[PROOF_HEAD..], &mut [0; MESSAGE]).is_err() {
            if let Some(crossing) = self.crosses(&came[PROOF_HEAD..]) {
                return self.settle(noise, crossing);
            }
            return Err(self.refuse(fd, &Proof::Refused(Refusal::KeyDiffers).emit(), Error::KeyDiffers));
        }
        if !self.calls {
            self.write(&mut noise).map_err(|_| Unproved::Error(Error::NoResources))?;
            return transport(*noise).map(At::Confirmation);
        }
        let mut noise = transport(*noise)?;
        let mut message = [0; TAG];
        noise.write_message(&[], &mut message).map_err(|_| Unproved::Garbage)?;
        self.out.extend(message);
        Ok(At::Leaving(noise))
    }

    /// Both called at the same moment, and both calls are this connection (`sys/ports.rs`): what came is no answer, but the first message of a caller who
    /// has the key, and not our own one that somebody sends back. `None`: it is not so, or that was settled before.
    fn crosses(&mut self, came: &[u8]) -> Option<Crossing> {
        let Said { guard, message } = *self.said.take()?;
        let mut theirs = noise(&guard, false).ok()?;
        theirs.read_message(came, &mut [0; MESSAGE]).ok()?;
        (message != came).then(|| Crossing { theirs, ours_counts: message.as_slice() < came })
    }

    /// Of two calls that are one connection that with the smaller message counts, and the other one's caller answers.
    fn settle(&mut self, ours: Box<HandshakeState>, Crossing { mut theirs, ours_counts }: Crossing) -> Result<At, Unproved> {
        if ours_counts {
            return Ok(At::Message(ours));
        }
        self.calls = false;
        self.write(&mut theirs).map_err(|_| Unproved::Error(Error::NoResources))?;
        transport(theirs).map(At::Confirmation)
    }

    fn confirmation(&mut self, mut noise: Box<TransportState>) -> Result<At, Unproved> {
        let came = std::mem::take(&mut self.came);
        match noise.read_message(&came, &mut [0; TAG]) {
            Ok(_) => Ok(At::Leaving(noise)),
            Err(_) => Err(Unproved::Error(Error::KeyDiffers)),
        }
    }
}

fn head(encrypted: bool) -> [u8; PROOF_HEAD] {
    Proof::Follows { encrypted }.emit()
}

/// The Noise protocol of who calls, or of who is called.
fn noise(guard: &Guard, calls: bool) -> Result<HandshakeState, snow::Error> {
    let params: NoiseParams = PATTERN.parse()?;
    let (head, key) = (head(guard.encrypt), guard.key.shared());
    let builder = Builder::new(params).psk(0, &key)?.prologue(&head)?;
    if calls { builder.build_initiator() } else { builder.build_responder() }
}

fn transport(noise: HandshakeState) -> Result<Box<TransportState>, Unproved> {
    noise.into_transport_mode().map(Box::new).map_err(|_| Unproved::Garbage)
}

/// Says why, and that nothing follows. What the other side has said is read first, as far as it is here: else closing would take back what we say.
pub(super) fn refuse(fd: &OwnedFd, words: &[u8]) {
    let mut rest = [0; HELLO_LEN];
    let _ = tcp::recv_bytes(fd, &mut rest);
    let _ = tcp::send_bytes(fd, words);
    tcp::finish(fd);
}
