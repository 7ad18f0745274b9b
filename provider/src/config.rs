//! THE table of tunables. Registration with libfabric, parsing, the README's rows and the
//! misspelling check are loops over [`PARAMS`]; nothing else knows a parameter's name.
//!
//! Most values are numbers with limits. A value that a number cannot say has a type of its own, a `Text` row, and reads and
//! shows itself.

pub mod echo;
pub mod force;
pub mod network;
pub mod processor;
pub mod profile;

use echo::shown;
use force::Forced;
use network::{Iface, PortRange, Secret, SecretFile};
use processor::Processor;
use profile::ProfileChoice;

/// How a parameter's text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `0`/`1`, `no`/`yes`, `off`/`on`, `false`/`true`.
    Bool,
    /// A whole number.
    Count,
    /// A number of bytes; `k`, `m`, `g` (powers of 1024) may follow.
    Bytes,
    /// Milliseconds.
    Millis,
    /// One of the listed words; the value is the word's index.
    Choice(&'static [&'static str]),
    /// Text that is read into a value of its own type; what is allowed, in words.
    Text(&'static str),
}

/// One row of the table.
pub struct Param {
    /// Name as `fi_param_define` takes it; the environment variable is `FI_RUSTMX_` + upper case.
    pub name: &'static str,
    /// How its text is read.
    pub kind: Kind,
    /// What it does, in one sentence.
    pub help: &'static str,
    place: Place,
}

/// Where a value is kept.
enum Place {
    /// A number within limits.
    Number { defaults: Defaults, min: u64, max: u64, get: fn(&Config) -> u64, set: fn(&mut Config, u64) },
    /// A value that is empty by default. `set` returns what of the text it could not use.
    Text { get: fn(&Config) -> String, set: fn(&mut Config, &str) -> Vec<String> },
}

/// What a number is if nobody says anything.
#[derive(Clone, Copy)]
struct Defaults {
    usual: u64,
    granite: u64,
    zen3: u64,
    zen4: u64,
    zen5: u64,
}

impl Defaults {
    fn on(self, processor: Processor) -> u64 {
        match processor {
            Processor::Usual => self.usual,
            Processor::Granite => self.granite,
            Processor::Zen3 => self.zen3,
            Processor::Zen4 => self.zen4,
            Processor::Zen5 => self.zen5,
        }
    }
}

macro_rules! table {
    (
        numbers { $( $(#[doc = $help:literal])+ $field:ident : $kind:expr, $default:expr, $min:expr, $max:expr $(, granite: $granite:expr)? $(, zen: $zen:expr)? $(, zen3: $zen3:expr)? $(, zen4: $zen4:expr)?; )* }
        texts { $( $(#[doc = $text_help:literal])+ $text:ident : $type:ty, $allowed:literal; )* }
    ) => {
        /// The values in force for one process. Numbers have units as in [`PARAMS`].
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $( $(#[doc = $help])+ pub $field: u64, )*
            $( $(#[doc = $text_help])+ pub $text: $type, )*
            /// Which of them the user named, also where the value is the default: what was said goes before what was measured.
            pub given: Given,
            /// Which of the others have what was measured to be best here.
            pub measured: Given,
            /// Whose defaults the rest have.
            pub processor: Processor,
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $( $field: $default, )* $( $text: Default::default(), )* given: Given(0), measured: Given(0), processor: Processor::Usual }
            }
        }

        /// Every tunable, in the order the documentation lists them.
        pub static PARAMS: &[Param] = &[ $( Param {
            name: stringify!($field), kind: $kind, help: concat!($($help),+).trim_ascii(),
            place: Place::Number {
                defaults: Defaults {
                    usual: $default,
                    granite: *[$default $(, $granite)?].last().expect("not empty"),
                    zen3: *[$default $(, $zen)? $(, $zen3)?].last().expect("not empty"),
                    zen4: *[$default $(, $zen)? $(, $zen4)?].last().expect("not empty"),
                    zen5: *[$default $(, $zen)?].last().expect("not empty"),
                },
                min: $min, max: $max, get: |c| c.$field, set: |c, v| c.$field = v,
            },
        }, )* $( Param {
            name: stringify!($text), kind: Kind::Text($allowed), help: concat!($($text_help),+).trim_ascii(),
            place: Place::Text {
                get: |c| c.$text.to_string(),
                set: |c, text| {
                    let (value, complaints) = <$type>::parse(text);
                    c.$text = value;
                    complaints
                },
            },
        }, )* ];
    };
}

table! {
    numbers {
        /// Print one line of counters to standard error when an endpoint that was used closes.
        stats: Kind::Bool, 0, 0, 1;
        /// What an endpoint that was used tells on standard error when it closes: how much went which way, what was refused and why; used: ways that were used only; json: an object a line.
        explain: Kind::Choice(&["0", "1", "used", "json"]), 0, 0, 3;
        /// Most bytes of a ring, the memory for one direction of a connected pair of endpoints (rounded up to whole pages).
        ring_size: Kind::Bytes, 256 << 10, 8 << 10, 1 << 20;
        /// Memory for the rings from one endpoint to all others of its host: each gets its part, as many as the address vector names; 20 KiB at least, and the ring size at most. A third of it is for what is behind open rings.
        ring_memory: Kind::Bytes, 4 << 20, 20 << 10, 1 << 40, granite: 6 << 20, zen: 6 << 20;
        /// Longest message that travels as one record; longer ones are streamed in fragments.
        eager_max: Kind::Bytes, 32 << 10, 232, 60 << 10;
        /// Longest message that clients are told to send by inject calls, which give the buffer back at once: that spares MPICH and Intel MPI a completion. Less where such messages may go better than by a copy: where the heap is preloaded, or a way is forced.
        inject_max: Kind::Bytes, 8 << 10, 232, 8 << 10;
        /// Payload bytes of one fragment of a streamed message.
        fragment: Kind::Bytes, 8 << 10, 256, 60 << 10, granite: 16 << 10, zen: 32 << 10;
        /// Cache lines of the ring (64 bytes each) that a sender fetches for its next record while the peer reads the last one: at most as many as that had.
        fetch_ahead: Kind::Count, 600, 0, 4096, zen: 0;
        /// Longest payload whose cache lines are passed on to the cache that all cores share as soon as it is published (the instruction CLDEMOTE), where their reader finds them sooner than in its writer's; 0: none.
        hand_on: Kind::Bytes, 0, 0, 64 << 10, granite: 16 << 10;
        /// Whether peers could write to the rings that they read: sealed: no, the kernel forbids it; open: they can, and long messages answer each other in memory of both; taken: they do, what they have read as it is, so that their core lets go of it sooner. It depends on the processor which is quickest.
        rings: Kind::Choice(&["sealed", "open", "taken"]), 0, 0, 2, granite: 1, zen: 1, zen3: 2, zen4: 2;
        /// How payload of 1 KiB or more is copied by way of memory that two processes have: memcpy; ahead: whoever reads what the other one has just written, 2 KiB or more of it, asks for its lines well before it comes to them, for the prefetchers of some processors ask for too few at a time (messages below 256 KiB); vectors: by loads and stores of whole lines, where the processor has them (AVX-512), but for rings (messages below 32 KiB); abreast: 4 KiB or more by loads and stores of half a line (AVX), 12 KiB or more in two stretches side by side, for the prefetchers of some processors follow each of them, but for rings.
        record_copy: Kind::Choice(&["memcpy", "ahead", "vectors", "abreast"]), 0, 0, 3, granite: 2, zen: 2, zen3: 3, zen4: 1;
        /// Shortest payload in common memory that is announced before it is there, if its message is no longer than 64 KiB: its reader finds out where it belongs meanwhile, and copies behind its writer. Only what is behind open rings is that memory, and takes 32 KiB at a time: more means never. One record that may be handed on (FI_RUSTMX_HAND_ON) is not announced.
        announce_min: Kind::Bytes, 8 << 10, 1 << 10, 64 << 10, granite: 16 << 10, zen: 16 << 10, zen4: 8 << 10;
        /// Most pieces in which such a payload comes, of 4 KiB or more each: after each of them its reader is told.
        announce_pieces: Kind::Count, 8, 1, 64, zen: 2, zen3: 4, zen4: 8;
        /// Payload bytes one peer may leave unmatched at a receiver before its further messages wait at the sender.
        eager_window: Kind::Bytes, 128 << 10, 16 << 10, 1 << 30;
        /// Rings that every poll looks at directly; further peers announce themselves through the ready-set.
        hot_peers: Kind::Count, 8, 1, 64;
        /// Shortest message that the kernel copies straight from the sender's buffer to the receiver's, where it allows that.
        syscall_min: Kind::Bytes, 64 << 10, 4 << 10, 1 << 30, zen: 16 << 20, zen3: 2 << 20;
        /// Shortest such message that sender and receiver may copy together, each a part; they do where one alone would take so long that it pays.
        share_min: Kind::Bytes, 32 << 10, 16 << 10, 1 << 30;
        /// Nanoseconds that one side alone must be expected to need, by what was seen of the peer, before both copy; 0: both always do. Unless it is set, it is corrected by what both are seen to take (FI_RUSTMX_ADAPT).
        share_worth: Kind::Count, 7_000, 0, 1_000_000_000;
        /// Whether the kernel copies long messages, and reads and writes of a peer's memory without the peer: auto lets it where it will.
        cma: Kind::Choice(&["auto", "never"]), 0, 0, 1;
        /// Who may copy out of and into this process's memory where Yama asks that (ptrace_scope is 1): launcher: the other children of its parent, and their own; any: every process of this user, as is needed where each rank has a script of its own for a parent, or process 1; none: nobody but its ancestors. What the program said of that before is replaced, but by none.
        yama: Kind::Choice(&["launcher", "any", "none"]), 0, 0, 2;
        /// Whether what is seen of a peer corrects what is known: messages of 4 to 32 KiB in lent memory go through the ring where receivers tell that they do not find them in their own caches (programs that rewrite what they send), others are left to the kernel where receivers do (FI_RUSTMX_AGAIN_MIN), and both copy long ones where that is seen to pay; never: as the table says.
        adapt: Kind::Choice(&["auto", "never"]), 0, 0, 1;
        /// Shortest message, not in lent memory, that the kernel copies although a record would carry it, if its buffer looks as it did when it was last sent to that peer, and the receiver finds it in its own cache (FI_RUSTMX_ADAPT). Up to 64 KiB: more means never.
        again_min: Kind::Bytes, 1 << 30, 4 << 10, 1 << 30, granite: 12 << 10;
        /// Nanoseconds for a KiB that a receiver's copy takes at most if it finds the source in its own cache (FI_RUSTMX_ADAPT).
        cached_pace: Kind::Count, 130, 0, 1_000_000, granite: 60, zen: 6, zen4: 20;
        /// Whether peers may map the long blocks of the preloaded heap (librustmx_heap.so), and sealed memfds that the program maps: auto lets them read what is sent to them and write what they send; read: only read.
        lend: Kind::Choice(&["auto", "read", "never"]), 0, 0, 2;
        /// Shortest message out of such memory that is copied once, by a receiver that has mapped it.
        mapped_min: Kind::Bytes, 4 << 10, 256, 1 << 30, zen: 8 << 10, zen4: 4 << 10;
        /// Shortest such message that both may copy together, each a part, if the receiver's buffer is in such memory, too, or the kernel lets the sender write it.
        mapped_share_min: Kind::Bytes, 32 << 10, 16 << 10, 1 << 30;
        /// Nanoseconds that one side alone must be expected to need for such a message before both copy; 0: both always do. Unless it is set, it is corrected as well.
        mapped_share_worth: Kind::Count, 4_000, 0, 1_000_000_000;
        /// Whether a receive that waits for such a message of 32 to 512 KiB from one peer invites it to write a part at once, where its buffer is such memory, too: auto: where that is in time, and was seen to pay; never: both copy only after the receiver has heard of the message.
        invite: Kind::Choice(&["auto", "never"]), 0, 0, 1;
        /// Mappings of which something is kept: those of the program's own that are lent, and those of peers' memory that an endpoint has attached. What was not used for longest goes first, what a message needs stays; what is needed again is found out, or attached, again.
        cache_count: Kind::Count, 1024, 1, 65_536;
        /// Bytes of addresses of all of these. Addresses only, and not memory: an arena of the preloaded heap has 64 GiB.
        cache_bytes: Kind::Bytes, 1 << 46, 1 << 20, 1 << 46;
        /// How long first contact with a peer may take before the operations that wait for it fail.
        connect_timeout: Kind::Millis, 10_000, 10, 3_600_000;
        /// How long closing an endpoint may wait to hand over what it accepted. Unless it is set, messages whose buffers were given back at once (FI_RUSTMX_INJECT_MAX), and which so count as sent, are waited for as long as their receivers live.
        close_timeout: Kind::Millis, 5_000, 0, 3_600_000;
        /// Whether an idle poll gives up the core: auto does when ranks outnumber the cores they share. Where it does, nobody asks the other side to help copy, for that one may not run.
        yield_when_idle: Kind::Choice(&["auto", "never", "always"]), 0, 0, 2;
        /// Whether the core pauses for a moment (the instruction PAUSE) in a poll that finds nothing: some processors run ahead of what they look at, throw that work away when it changes, and then take longer than the pause.
        pause: Kind::Bool, 0, 0, 1, granite: 1;
        /// Idle polls in a row before the first yield, when yielding.
        spin: Kind::Count, 20, 0, 1_000_000;
        /// Whether peers of the same host are reached through shared memory; no: by the network, as if they were elsewhere.
        shm: Kind::Bool, 1, 0, 1;
        /// Whether peers on other hosts are reached, by TCP; no: nothing listens for them.
        tcp: Kind::Bool, 1, 0, 1;
        /// Bytes of the ring for each direction of a connection to another host (rounded up to whole pages): as much may be under way.
        tcp_ring_size: Kind::Bytes, 128 << 10, 8 << 10, 1 << 20;
        /// Longest message to another host that travels as one record; longer ones go from buffer to buffer once the receiver has one.
        tcp_eager_max: Kind::Bytes, 8 << 10, 232, 60 << 10;
        /// Payload bytes one peer on another host may leave unmatched at a receiver: as much leaves without being asked for.
        tcp_window: Kind::Bytes, 1 << 20, 16 << 10, 1 << 30;
        /// Connections by which long messages go to a peer on another host: auto: more than one where that was measured to be quicker; 1: one.
        tcp_lanes: Kind::Choice(&["auto", "1", "2", "3", "4", "5", "6", "7", "8"]), 0, 0, 8;
        /// Whether long messages by TCP leave without a copy by the kernel: auto: to other hosts (MSG_ZEROCOPY, io_uring), and inside a host where many follow one another (their pages, by vmsplice), wherever that was seen to take less of the sender's time; never: copied. For tests: always: by MSG_ZEROCOPY, wherever the kernel takes them so; uring: out of registered buffers where messages come out of the same memory again, else as always; pages: to peers of this host as pages.
        tcp_zerocopy: Kind::Choice(&["auto", "always", "never", "uring", "pages"]), 0, 0, 4;
        /// Whether jobs begin with what earlier ones found out about the links to other hosts (by how many connections long messages go, whether without a copy), and keep what they find: auto: they do, in `links.toml` beside the profile, unless that is off; never: each connection finds out by itself.
        learn: Kind::Choice(&["auto", "never"]), 0, 0, 1;
        /// How long a peer's host may give no sign of life before what waits for the peer fails; one that only computes gives signs.
        peer_timeout: Kind::Millis, 10_000, 3_000, 3_600_000;
        /// Whether everything that goes to other hosts is encrypted, by a key that the job's processes share (FI_RUSTMX_AUTH_KEY or FI_RUSTMX_AUTH_KEY_FILE).
        encrypt: Kind::Bool, 0, 0, 1;
        /// Whether an endpoint that has no such key is refused where other hosts could reach it.
        require_key: Kind::Bool, 0, 0, 1;
        /// How messages in mapped memory are copied: plain: by memcpy; streaming: those of 64 KiB or more are written past the caches; auto: as was measured to pay, by memcpy or as FI_RUSTMX_RECORD_COPY says.
        copy: Kind::Choice(&["auto", "plain", "streaming"]), 0, 0, 2;
        /// Whether a thread of each process helps to copy what it receives while it computes: auto: where ranks are fewer than the cores they share (their other threads are not counted).
        copy_thread: Kind::Choice(&["never", "auto", "always"]), 0, 0, 2;
        /// Shortest message with which it helps.
        copy_thread_min: Kind::Bytes, 4 << 20, 64 << 10, 1 << 30;
    }
    texts {
        /// The interface by which other hosts reach this one: by its name all of its addresses (as many as a name has room for), by one of them only that; behind @ the address of a router that passes on what comes for our ports.
        iface: Iface, "nothing (the best ones), an interface's name or an address, or one of these before an @ and another address";
        /// Ports to listen at for other hosts, and to call them from: as many as there are ranks on a host.
        port_range: PortRange, "nothing (any), or first-last";
        /// What all processes of a job know and nobody else: who does not prove that it knows it, too, is not talked to.
        auth_key: Secret, "nothing (anybody may connect), or 16 to 4096 bytes that nobody can guess, such as `openssl rand -hex 32` prints";
        /// A file that holds it; nobody but its owner may be able to read it.
        auth_key_file: SecretFile, "nothing, or a path";
        /// Protocols to use instead of the table's, with the sizes for which; where the kernel refuses one, another carries the message.
        protocol: Forced, "nothing, or a list like eager:0-4k,syscall:64k- of inline, eager, stream, syscall, alone (syscall by one side), shared (by both), mapped, mapped-alone, mapped-shared";
        /// The file of measured costs that `rustmx tune` writes, from which the table of protocols is made where no parameter says otherwise.
        profile: ProfileChoice, "nothing (the user's own, `rustmx/profile.toml` in the configuration directory), a path, or off";
    }
}

/// Some of the parameters: a bit for each row of [`PARAMS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given(u64);

impl Config {
    /// All as it is shipped for a processor.
    pub fn on(processor: Processor) -> Config {
        let mut config = Config { processor, ..Config::default() };
        for p in PARAMS {
            if let Place::Number { defaults, set, .. } = p.place {
                set(&mut config, defaults.on(processor));
            }
        }
        config
    }

    /// Whether peers could write to the rings that they read, and may to what is behind them.
    pub fn opens_rings(&self) -> bool {
        self.rings != 0
    }

    /// Whether who reads long records takes their lines for itself.
    pub fn takes_lines(&self) -> bool {
        self.rings == 2
    }

    /// Whether the user says what a parameter is to be: named it, or a test or a tool changed it.
    pub fn says(&self, name: &str) -> bool {
        PARAMS.iter().any(|p| p.name == name && p.is_set(self))
    }
}

/// The environment prefix of every parameter.
pub const ENV_PREFIX: &str = "FI_RUSTMX_";

impl Param {
    /// The environment variable.
    pub fn env(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.to_ascii_uppercase())
    }

    /// Whether its value is not to be seen by anybody.
    pub fn is_secret(&self) -> bool {
        self.name == "auth_key"
    }

    /// Whether it keeps others out: whoever sets it and misspells how is not to run without.
    fn is_safeguard(&self) -> bool {
        matches!(self.name, "encrypt" | "require_key")
    }

    /// The value in `config`, as a user would write it; of a secret only whether there is one.
    pub fn value(&self, config: &Config) -> String {
        match self.place {
            Place::Number { get, .. } => self.show(get(config)),
            Place::Text { get, .. } => get(config),
        }
    }

    /// The default for a processor, as a user would write it; empty for texts.
    pub fn default(&self, processor: Processor) -> String {
        match self.place {
            Place::Number { defaults, .. } => self.show(defaults.on(processor)),
            Place::Text { .. } => String::new(),
        }
    }

    /// The smallest allowed value and the largest, as a user would write them; `None` for texts.
    pub fn limits(&self) -> Option<(String, String)> {
        match self.place {
            Place::Number { min, max, .. } => Some((self.show(min), self.show(max))),
            Place::Text { .. } => None,
        }
    }

    /// Whether `config` says something else than the default, or a user named the parameter.
    pub fn is_set(&self, config: &Config) -> bool {
        let differs = match self.place {
            Place::Number { defaults, get, .. } => get(config) != defaults.on(config.processor),
            Place::Text { get, .. } => !get(config).is_empty(),
        };
        (differs && config.measured.0 & self.bit() == 0) || config.given.0 & self.bit() != 0
    }

    /// Gives a number that nobody has said anything of the value that was measured to be best here. Whether `text` makes sense.
    pub fn suggest(&self, config: &mut Config, text: &str) -> bool {
        let Place::Number { min, max, set, .. } = self.place else { return false };
        let Some(value) = self.parse(text).filter(|v| (min..=max).contains(v)) else { return false };
        if !self.is_set(config) {
            set(config, value);
            config.measured.0 |= self.bit();
        }
        true
    }

    /// This row's bit of [`Given`].
    fn bit(&self) -> u64 {
        const { assert!(PARAMS.len() <= 64) };
        PARAMS.iter().position(|p| std::ptr::eq(p, self)).map_or(0, |at| 1 << at)
    }

    fn show(&self, value: u64) -> String {
        match self.kind {
            Kind::Bool => if value != 0 { "yes" } else { "no" }.into(),
            Kind::Bytes => show_bytes(value),
            Kind::Choice(words) => words[value as usize].into(),
            _ => value.to_string(),
        }
    }

    /// What values are allowed, in words.
    pub fn range(&self) -> String {
        match (self.kind, self.limits()) {
            (Kind::Bool, _) => "yes or no".into(),
            (Kind::Choice(words), _) => words.join(", "),
            (Kind::Text(words), _) => words.into(),
            (Kind::Millis, Some((min, max))) => format!("{min} to {max} milliseconds"),
            (_, limits) => limits.map_or(String::new(), |(min, max)| format!("{min} to {max}")),
        }
    }

    /// Reads `text` into `config`.
    ///
    /// # Errors
    /// A sentence for the user. Then `config` has the default, or what of a list makes sense; of what keeps others out, that it does.
    pub fn parse_into(&self, config: &mut Config, text: &str) -> Result<(), String> {
        config.given.0 &= !self.bit();
        config.measured.0 &= !self.bit();
        let (default, min, max, set) = match self.place {
            Place::Number { defaults, min, max, set, .. } => (defaults.on(config.processor), min, max, set),
            Place::Text { set, .. } => {
                let complaints = set(config, text);
                return if complaints.is_empty() { Ok(()) } else { Err(self.ignored(text, &complaints)) };
            }
        };
        let parsed = self.parse(text);
        let text = &shown(text);
        match parsed {
            Some(v) if (min..=max).contains(&v) => {
                set(config, v);
                config.given.0 |= self.bit();
                Ok(())
            }
            _ => {
                let strict = self.is_safeguard() && !text.trim().is_empty();
                let (value, what) = if strict { (1, "taking") } else { (default, "using the default,") };
                set(config, value);
                Err(format!("{}={text} is not usable (allowed: {}); {what} {}", self.env(), self.range(), self.show(value)))
            }
        }
    }

    /// The sentence for a text of which parts are not used, and why.
    fn ignored(&self, text: &str, complaints: &[String]) -> String {
        const MOST: usize = 3;
        let told = complaints.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join("; ");
        let more = match complaints.len().saturating_sub(MOST) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        format!("{}={}: ignored is {told}{more}", self.env(), shown(text))
    }

    fn parse(&self, text: &str) -> Option<u64> {
        let t = text.trim().to_ascii_lowercase();
        match self.kind {
            Kind::Bool => match t.as_str() {
                "1" | "yes" | "on" | "true" | "y" | "t" => Some(1),
                "0" | "no" | "off" | "false" | "n" | "f" => Some(0),
                _ => None,
            },
            Kind::Choice(words) => words.iter().position(|w| *w == t).map(|i| i as u64),
            Kind::Count | Kind::Millis => t.parse().ok(),
            Kind::Bytes => parse_bytes(&t),
            Kind::Text(_) => None,
        }
    }
}

/// A number of bytes from its text in lower case; `k`, `m`, `g` (powers of 1024) may follow the digits.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['k', 'm', 'g']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A number of bytes as a user would write it.
pub fn show_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        n if n.is_multiple_of(1 << 20) => format!("{}m", n >> 20),
        n if n.is_multiple_of(1 << 10) => format!("{}k", n >> 10),
        n => n.to_string(),
    }
}

/// A warning for an environment variable that starts with [`ENV_PREFIX`] but names no parameter;
/// `None` if the name is known. Names the nearest known variable when one is near.
pub fn unknown_variable(env_name: &str) -> Option<String> {
    let suffix = env_name.strip_prefix(ENV_PREFIX)?;
    // Whoever writes a name in small letters is not heard by anybody.
    if PARAMS.iter().any(|p| p.env() == env_name) {
        return None;
    }
    let env_name = &shown(env_name);
    let lower = suffix.to_ascii_lowercase();
    let nearest = PARAMS
        .iter()
        .map(|p| (strsim::damerau_levenshtein(&lower, p.name), p))
        .min_by_key(|(d, _)| *d)
        .filter(|(d, p)| *d <= p.name.len().max(lower.len()) / 2);
    Some(match nearest {
        Some((_, p)) => format!("{env_name} is not a rustmx parameter and has no effect; did you mean {}?", p.env()),
        None => {
            format!("{env_name} is not a rustmx parameter and has no effect; `fi_info -e -p rustmx` or the README lists them")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(name: &str) -> &'static Param {
        PARAMS.iter().find(|p| p.name == name).expect("known")
    }

    #[test]
    fn defaults_are_in_range_and_round_trip() {
        for processor in Processor::ALL {
            let mut c = Config::on(processor);
            for p in PARAMS {
                let default = p.default(processor);
                assert!(!p.is_set(&c), "{}", p.name);
                p.parse_into(&mut c, &default).expect(p.name);
                assert_eq!(p.value(&c), default, "{}", p.name);
                for limit in p.limits().into_iter().flat_map(|(min, max)| [min, max]) {
                    p.parse_into(&mut c, &limit).expect(p.name);
                    p.parse_into(&mut c, &default).expect(p.name);
                }
                assert!(!p.help.is_empty() && p.help.ends_with('.'), "{}", p.name);
            }
            assert!(c.says("syscall_min") && c.says("spin") && !c.says("protocol"), "named, with the default's value");
            c.given = Given::default();
            assert_eq!(c, Config::on(processor));
        }
        assert_eq!(Config::on(Processor::Usual), Config::default());
    }

    #[test]
    fn what_is_not_usable_leaves_the_processors_default() {
        let mut c = Config::on(Processor::Zen5);
        let default = c.syscall_min;
        assert_ne!(default, Config::default().syscall_min);
        let why = param("syscall_min").parse_into(&mut c, "much").expect_err("no number");
        assert!(why.ends_with("using the default, 16m") && c.syscall_min == default && !c.says("syscall_min"), "{why}");
        param("syscall_min").parse_into(&mut c, "64k").expect("a number");
        assert!(c.says("syscall_min"), "another processor's default is no default here");
    }

    #[test]
    fn a_misspelt_safeguard_keeps_others_out() {
        let mut c = Config::default();
        for name in ["encrypt", "require_key"] {
            let why = param(name).parse_into(&mut c, "tru").expect_err("no word");
            assert!(why.ends_with("taking yes") && param(name).value(&c) == "yes", "{why}");
            let why = param(name).parse_into(&mut c, "").expect_err("nothing");
            assert!(why.ends_with("the default, no") && param(name).value(&c) == "no", "{why}");
        }
        param("shm").parse_into(&mut c, "tru").expect_err("no word");
        assert_eq!(c.shm, 1);
    }

    #[test]
    fn what_was_measured_gives_way_to_what_is_said() {
        let mut c = Config::default();
        let p = param("rings");
        assert!(p.suggest(&mut c, "taken") && c.takes_lines() && !c.says("rings"));
        assert!(p.suggest(&mut c, "open") && c.opens_rings() && !c.takes_lines(), "another measurement");
        assert!(
            !p.suggest(&mut c, "ajar") && !param("ring_size").suggest(&mut c, "1") && !param("profile").suggest(&mut c, "off")
        );
        p.parse_into(&mut c, "sealed").expect("a word");
        assert!(c.says("rings") && p.suggest(&mut c, "taken") && !c.opens_rings());
        let mut changed = Config { fragment: 4096, ..Config::default() };
        assert!(param("fragment").suggest(&mut changed, "16k") && changed.fragment == 4096, "a test or a tool said so");
    }

    #[test]
    fn units_and_limits() {
        let mut c = Config::default();
        param("ring_size").parse_into(&mut c, "64k").expect("64k");
        assert_eq!(c.ring_size, 65536);
        let why = param("peer_timeout").parse_into(&mut c, "4s").expect_err("a unit of its own");
        assert!(why.contains("allowed: 3000 to 3600000 milliseconds"), "{why}");
        for bad in ["1", "99g", "x", "", "-1", "12kk", "18446744073709551615g"] {
            assert!(param("ring_size").parse_into(&mut c, bad).is_err(), "{bad}");
            assert!(!c.says("ring_size"), "{bad}");
        }
        param("yield_when_idle").parse_into(&mut c, "Never").expect("choice");
        assert_eq!(c.yield_when_idle, 1);
    }

    #[test]
    fn of_a_list_the_sensible_parts_are_kept() {
        let mut c = Config::default();
        let p = param("protocol");
        let why = p.parse_into(&mut c, "stream:4k-64k,nonsense").expect_err("complaint");
        assert!(why.starts_with("FI_RUSTMX_PROTOCOL=stream:4k-64k,nonsense: ignored is `nonsense`"), "{why}");
        assert_eq!((p.value(&c), p.is_set(&c)), ("stream:4k-64k".into(), true));
        let why = p.parse_into(&mut c, &"\u{1b}[1m,".repeat(9999)).expect_err("complaint");
        assert!(why.len() < 800 && why.ends_with("; and 9996 more") && !why.contains('\u{1b}'), "{why}");
        let why = param("spin").parse_into(&mut c, "1\n2").expect_err("complaint");
        assert!(why.starts_with("FI_RUSTMX_SPIN=1\\n2 is not usable"), "{why}");
        p.parse_into(&mut c, "").expect("the table");
        assert_eq!(c, Config::default());
    }

    #[test]
    fn misspelt_names_get_the_nearest() {
        assert_eq!(unknown_variable("FI_RUSTMX_STATS"), None);
        assert_eq!(unknown_variable("FI_OTHER"), None);
        let w = unknown_variable("FI_RUSTMX_EAGER_MXA").expect("warned");
        assert!(w.contains("FI_RUSTMX_EAGER_MAX"), "{w}");
        let w = unknown_variable("FI_RUSTMX_eager_max").expect("it has no effect");
        assert!(w.contains("did you mean FI_RUSTMX_EAGER_MAX?"), "{w}");
        let w = unknown_variable("FI_RUSTMX_QQQQQQQQQQQQ").expect("warned");
        assert!(!w.contains("did you mean"), "{w}");
    }
}
