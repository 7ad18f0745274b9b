//! THE list of counters: plain numbers, always on. What went to peers is counted beside each peer (`endpoint/tally.rs`) and added up
//! when somebody asks; the owner of an endpoint increments the rest.

use crate::types::ProtoId;

macro_rules! counters {
    ($( $(#[doc = $help:literal])+ $field:ident; )*) => {
        /// What one endpoint did.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $( $(#[doc = $help])+ pub $field: u64, )* }

        impl Stats {
            /// The names of all counters, each ended by a NUL for C.
            pub const NAMES: &'static [&'static str] = &[ $( concat!(stringify!($field), "\0"), )* ];

            /// Name and value of every counter.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![ $( (stringify!($field), self.$field), )* ]
            }

            /// The sum of both, counter by counter.
            pub fn plus(&self, other: &Stats) -> Stats {
                Stats { $( $field: self.$field.wrapping_add(other.$field), )* }
            }
        }
    };
}

counters! {
    /// Messages sent.
    sent;
    /// Messages received.
    received;
    /// Messages sent inline.
    inline;
    /// Messages sent by eager copy.
    eager;
    /// Messages sent as streams.
    stream;
    /// Messages offered to the receiver, to be copied by the kernel.
    syscall;
    /// Messages offered to the receiver in memory that both have mapped.
    mapped;
    /// Mappings of peers' memory that were given up for others (`FI_RUSTMX_CACHE_COUNT`, `FI_RUSTMX_CACHE_BYTES`).
    evicted;
    /// Of these, those that were attached again since a message named them.
    reattached;
    /// Messages of which the sender wrote a part at once, where a receive that waited had invited it to (`FI_RUSTMX_INVITE`).
    invited;
    /// Bytes of messages that this side copied from its peers' memory.
    fetched;
    /// Bytes of messages that this side copied to its peers' memory.
    stored;
    /// Bytes of these that were written past the caches, by streaming stores.
    past_caches;
    /// Bytes of these that the helper thread copied.
    helped;
    /// Offered messages that had to come as streams after all.
    declined;
    /// Eager messages that went as streams because the receiver's window was used up.
    window_full;
    /// Sends that found the ring full; they waited, or the application had to try again.
    ring_full;
    /// Messages that arrived before their receive was posted.
    unexpected;
    /// Reads and writes of a peer's memory that needed nothing of the peer.
    direct;
    /// Reads and writes of a peer's memory that the peer's engine carried out.
    one_sided;
    /// Atomic operations.
    atomics;
    /// Peers connected.
    peers;
    /// Peers lost: died, closed while something waited for them, or disconnected.
    lost;
    /// Cores given up by idle polls.
    yields;
    /// Times that the program took no turn for a millisecond or more while something that it may have taken for sent was put off (`docs/adr/0006-progress.md`).
    absences;
    /// Reads from the network of which part was put where it was guessed to belong, and did.
    guessed;
    /// The same, and it did not: those bytes were copied once more.
    misguessed;
    /// Bytes that guesses put where they belong: they needed no system call of their own.
    guess_placed;
    /// Bytes that guesses put elsewhere, and that were copied out again.
    guess_moved;
    /// Times that a connection stopped guessing for a while, because it did not pay.
    guess_stops;
    /// Further connections to peers on other hosts, for long messages.
    lanes;
    /// Bytes that were sent by these.
    striped;
    /// Bytes of messages to other hosts that the kernel was given to be sent without a copy (`MSG_ZEROCOPY`).
    zerocopy;
    /// The same out of registered buffers (io_uring).
    zerocopy_registered;
    /// Bytes of both that it copied all the same.
    zerocopy_copied;
}

impl Stats {
    /// Adds messages that went by `proto`.
    pub fn add_sent(&mut self, proto: ProtoId, messages: u64) {
        self.sent += messages;
        match proto {
            ProtoId::Inline => self.inline += messages,
            ProtoId::Eager => self.eager += messages,
            ProtoId::Stream => self.stream += messages,
            ProtoId::Syscall => self.syscall += messages,
            ProtoId::Mapped => self.mapped += messages,
        }
    }

    /// Whether the endpoint ever carried a message.
    pub fn used(&self) -> bool {
        self.sent + self.received + self.direct + self.one_sided + self.atomics > 0
    }

    /// One line for people and scripts.
    pub fn line(&self) -> String {
        self.rows().iter().map(|(name, value)| format!(" {name}={value}")).collect()
    }
}
