//! What is measured apart: by what a message goes, in which memory its buffers lie, and what became of them since the last one.

use crate::Failure;
use rustmx::config::force::{Forced, Way};
use rustmx::select::model::{Memory, Source};
use rustmx::{Config, Stats};
use serde::{Serialize, Serializer};

/// By what messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// By one way, which is forced; to other hosts by one connection, with a copy, unless the user says otherwise.
    Only(Way),
    /// From buffer to buffer by so many connections.
    Striped(u8),
    /// The same by one, without a copy by the sender's kernel.
    Uncopied,
    /// As the provider chooses.
    Chosen,
}

/// The ways that are compared.
pub(crate) const WAYS: [Way; Way::CARRIERS.len()] = Way::CARRIERS;

impl Lane {
    /// How messages to other hosts can go from buffer to buffer beside the usual way. No rows of a table: it is decided below, by what is measured in the job.
    pub const BESIDE: [Lane; 3] = [Lane::Striped(2), Lane::Striped(4), Lane::Uncopied];

    /// All ways, and the choice among them.
    pub fn all() -> impl Iterator<Item = Lane> {
        WAYS.into_iter().map(Lane::Only).chain(Lane::BESIDE).chain([Lane::Chosen])
    }

    /// Those that a table chooses among, and its choice.
    pub fn of_tables() -> impl Iterator<Item = Lane> {
        Lane::all().filter(|lane| !Lane::BESIDE.contains(lane))
    }

    /// The shortest message of which it is worth knowing what it takes so: shorter ones go as usual.
    pub fn from(self) -> usize {
        match self {
            Lane::Striped(_) => 512 << 10,
            Lane::Uncopied => 32 << 10,
            _ => 0,
        }
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Only(way) => way.name(),
            Lane::Striped(2) => "2-lanes",
            Lane::Striped(_) => "4-lanes",
            Lane::Uncopied => "zerocopy",
            Lane::Chosen => "chosen",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Result<Lane, Failure> {
        Lane::all().find(|lane| lane.name() == name).ok_or_else(|| format!("`{name}` is no way of messages"))
    }

    /// The configuration that makes an endpoint send by it.
    pub fn config(self, config: &Config) -> Config {
        match self {
            Lane::Only(way) => {
                let one = |name, unsaid, said| if config.says(name) { said } else { unsaid };
                let tcp_lanes = one("tcp_lanes", 1, config.tcp_lanes);
                let tcp_zerocopy = one("tcp_zerocopy", 2, config.tcp_zerocopy);
                Config { protocol: Forced::only(way), cma: 0, tcp_lanes, tcp_zerocopy, ..config.clone() }
            }
            Lane::Striped(number) => {
                let (protocol, tcp_lanes) = (Forced::only(Way::Stream), number.into());
                Config { protocol, tcp_lanes, tcp_zerocopy: 2, ..config.clone() }
            }
            Lane::Uncopied => Config { protocol: Forced::only(Way::Stream), tcp_lanes: 1, tcp_zerocopy: 1, ..config.clone() },
            Lane::Chosen => config.clone(),
        }
    }

    /// How many messages went by it.
    pub fn carried(self, stats: &Stats) -> u64 {
        match self {
            Lane::Chosen => stats.sent,
            Lane::Only(Way::Inline) => stats.inline,
            Lane::Only(Way::Eager) => stats.eager,
            Lane::Only(Way::Stream) | Lane::Striped(_) | Lane::Uncopied => stats.stream,
            Lane::Only(way) if way.needs_loan() => stats.mapped,
            Lane::Only(_) => stats.syscall,
        }
    }

    /// Messages before those that count. The first few move lines to where they stay (who copies which half), and tell a receiver that may choose
    /// how fast it copies.
    pub fn warm_up(size: usize) -> usize {
        match size {
            n if n < 4 << 10 => 1,
            n if n <= 1 << 20 => 8,
            _ => 2,
        }
    }
}

/// What became of the buffers since the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing: the source's lines are in both caches.
    Reused,
    /// The sender rewrote the source: its lines are in the sender's cache only.
    Fresh,
    /// Source and destination are in no cache.
    Cold,
}

impl State {
    /// All that can be had on this processor.
    pub const ALL: &[State] =
        if cfg!(target_arch = "x86_64") { &[State::Reused, State::Fresh, State::Cold] } else { &[State::Reused, State::Fresh] };

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            State::Reused => "reused",
            State::Fresh => "fresh",
            State::Cold => "cold",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<State> {
        State::ALL.iter().copied().find(|s| s.name() == name)
    }
}

/// What is known of the buffers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kind {
    /// Where both lie.
    #[serde(serialize_with = "memory")]
    pub memory: Memory,
    /// What became of them.
    #[serde(rename = "source", serialize_with = "state")]
    pub state: State,
}

fn memory<S: Serializer>(memory: &Memory, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(memory.name())
}

fn state<S: Serializer>(state: &State, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.name())
}

impl Kind {
    /// What a profile tells apart: cold buffers are none of it.
    pub fn source(self) -> Option<Source> {
        match self.state {
            State::Reused => Some(Source::Reused),
            State::Fresh => Some(Source::Fresh),
            State::Cold => None,
        }
    }

    /// For people.
    pub fn title(self) -> String {
        let what = match self.state {
            State::Reused => "reused source buffer",
            State::Fresh => "fresh source buffer",
            State::Cold => "cold buffers",
        };
        match self.memory {
            Memory::Private => what.into(),
            Memory::Exported => format!("{what}, exported memory (the preloaded heap)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found_by_their_names() {
        assert!(Lane::all().all(|lane| Lane::named(lane.name()) == Ok(lane)) && Lane::named("syscall").is_err());
        assert!(State::ALL.iter().all(|s| State::named(s.name()) == Some(*s)) && State::named("warm").is_none());
        let config = Config::default();
        assert_eq!(Lane::Chosen.config(&config), config);
        for lane in Lane::BESIDE {
            let made = lane.config(&config);
            assert_eq!((made.protocol.to_string().as_str(), made.tcp_lanes > 1), ("stream", matches!(lane, Lane::Striped(_))));
        }
        assert_eq!(Lane::of_tables().count() + Lane::BESIDE.len(), Lane::all().count());
        assert_eq!(Lane::Only(Way::MappedShared).config(&config).protocol.to_string(), "mapped-shared");
    }
}
