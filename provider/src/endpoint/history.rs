//! What an endpoint did, told when it closes (`FI_RUSTMX_EXPLAIN`): by operation and kind of peer which way how much went, and what
//! was refused and why. Made from the tallies of the peers and the select table; costs nothing before somebody asks.

use super::Endpoint;
use super::circumstances::{Circumstance, why_unlent};
use super::peers::Peer;
use super::tally::{Tally, Why};
use crate::log::{plural, quoted};
use crate::select::model::{Mover, PeerClass};
use crate::select::network::RowCost;
use crate::select::one_sided::Deed;
use crate::select::{Origin, Row, Selection};
use crate::transport::Reach;
use crate::types::{MAX_MSG, PeerId, ProtoId};
use std::fmt::Write;

/// How it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// For people, every row of the table.
    All,
    /// For people, what was used.
    Used,
    /// Every row as a JSON object on a line of its own.
    Json,
}

impl Telling {
    /// What the parameter's number stands for; `None`: nothing is to be told.
    pub fn of(explain: u64) -> Option<Telling> {
        [None, Some(Telling::All), Some(Telling::Used), Some(Telling::Json)].into_iter().nth(usize::try_from(explain).ok()?)?
    }
}

/// Operations that went one way.
struct Went {
    operation: &'static str,
    peers: &'static str,
    sizes: (usize, usize),
    way: &'static str,
    what: String,
    /// What such messages take one way.
    cost: Option<RowCost>,
    /// Of messages to other hosts: by which link they go, if that was measured.
    link: Option<String>,
    origin: Origin,
    /// The way that they should have gone, if that was refused.
    instead: Option<&'static str>,
    tally: Tally,
}

/// Operations that should have gone one way and went another.
struct Refused {
    operation: &'static str,
    pid: u32,
    sizes: (usize, usize),
    wanted: &'static str,
    way: &'static str,
    why: String,
    tally: Tally,
}

const HERE: &str = "same host";
const FAR: &str = "network";
const SELF: &str = "itself";

/// What says how much may be left for this peer without a receive.
pub(super) fn window(peer: &Peer) -> &'static str {
    match peer.reach {
        Reach::Network => "FI_RUSTMX_TCP_WINDOW",
        _ => "FI_RUSTMX_EAGER_WINDOW",
    }
}

fn why(why: Why, peer: &Peer) -> String {
    match why {
        Why::Ring => "the ring towards a peer is too short for it where there are many peers (FI_RUSTMX_RING_MEMORY)".into(),
        Why::Window => format!("the receiver may be left only so many bytes without a receive ({})", window(peer)),
        Why::Early => "the peer had not answered yet, so nothing was known about its memory".into(),
        Why::Kernel => peer.refusal.clone().unwrap_or_else(|| "the kernel lets neither side reach the other's memory".into()),
        Why::Memory => "the kernel could not reach the memory of these messages".into(),
        Why::Pieces => "the buffers lie in more pieces than an offer can name".into(),
        Why::Unknown => "where the peer's memory is was not known".into(),
        Why::Unmapped => "the receiver could not map the memory that was lent to it, so the kernel copied".into(),
        Why::Order => "earlier operations that the target's engine carries out came first".into(),
        Why::Again => {
            "their buffers look as they did when they were last sent, and the receiver finds them in its own cache, so the kernel's copy is quicker \
             than the ring (FI_RUSTMX_AGAIN_MIN)"
                .into()
        }
        Why::AtOnce => "the callers took their buffers back at once (inject), which only a copy allows".into(),
    }
}

impl Endpoint {
    /// What it did, in whole lines; empty if it was not used.
    pub fn history(&self, telling: Telling) -> String {
        if !self.stats().used() {
            return String::new();
        }
        let (mut went, refused) = (self.went(), self.refused());
        if telling == Telling::Used {
            went.retain(|w| w.tally.count > 0);
        }
        let mut beside = self.circumstances(self.peers_of(FAR).next().is_some());
        if telling == Telling::Used {
            beside.retain(|c| c.used);
        }
        if telling == Telling::Json { self.as_json(&went, &refused, &beside) } else { self.as_text(&went, &refused, &beside) }
    }

    fn is_itself(&self, peer: &Peer) -> bool {
        peer.name.identity().is_some() && peer.name.identity() == self.name.and_then(|n| n.identity())
    }

    fn peers_of(&self, kind: &str) -> impl Iterator<Item = &Peer> {
        let kind_of = |p: &Peer| match p.reach {
            _ if self.is_itself(p) => SELF,
            Reach::Host => HERE,
            Reach::Network => FAR,
        };
        self.peers.ids().map(|id| self.peers.get(id)).filter(move |p| kind_of(p) == kind)
    }

    /// What went by a table to some peers.
    fn rows<'a>(&'a self, group: &'static str, peers: &[&'a Peer], table: &Selection, link: Option<&str>, all: &mut Vec<Went>) {
        let sum = |of: &dyn Fn(&Peer) -> Tally| peers.iter().fold(Tally::default(), |sum, p| sum.plus(of(p)));
        let standing = self.profiles.standing(&self.config, &self.log);
        let model = link.and_then(|link| standing.profile()?.link(link));
        let went = |row: &Row, instead, tally| {
            let (what, cost) = match group {
                FAR => (row.what_far(self.config.tcp_window), RowCost::of(row, model)),
                SELF => (row.what().into(), None),
                _ => (row.what().into(), RowCost::here(row, table, standing.tuned(), self.config.processor)),
            };
            let (sizes, way, link) = ((row.from, row.up_to), row.proto.name(), link.map(String::from));
            Went { operation: "send", peers: group, sizes, way, what, cost, link, origin: row.origin, instead, tally }
        };
        for (at, row) in table.rows().iter().enumerate() {
            all.push(went(row, None, sum(&|p| p.tally.of_row(at))));
            // What was refused to this row went somehow, too, though the table may have no such row.
            for proto in ProtoId::ALL {
                let tally = sum(&|p| p.tally.of_turned(at, proto));
                if tally.count > 0 {
                    let carried = Row { proto, lent: false, origin: Origin::Shipped, ..*row };
                    all.push(went(&carried, Some(row.proto.name()), tally));
                }
            }
        }
        let class = if group == FAR { PeerClass::Network } else { PeerClass::SameHost };
        let model = if group == FAR { model } else { standing.profile().map(|p| &p.model) };
        let done = |row: &Deed, instead, tally| {
            let cost = RowCost::deed(row, class, model, self.config.processor).filter(|_| group != SELF);
            let (sizes, way, link) = ((row.from, row.up_to), row.mover.name(), link.map(String::from));
            let (operation, what) = (row.operation.name(), row.what().into());
            Went { operation, peers: group, sizes, way, what, cost, link, origin: row.origin, instead, tally }
        };
        for (at, row) in table.deeds().rows().iter().enumerate() {
            all.push(done(row, None, sum(&|p| p.tally.of_deed(at))));
            let tally = sum(&|p| p.tally.of_handed(at));
            if tally.count > 0 {
                let asked = Deed { mover: Mover::Target, origin: Origin::Shipped, ..*row };
                all.push(done(&asked, Some(row.mover.name()), tally));
            }
        }
    }

    fn went(&self) -> Vec<Went> {
        let mut all = Vec::new();
        for group in [HERE, FAR, SELF] {
            let peers: Vec<&Peer> = self.peers_of(group).collect();
            if peers.is_empty() {
                continue;
            }
            if group == FAR {
                for (at, table) in self.far.iter().enumerate() {
                    let these: Vec<&Peer> = peers.iter().copied().filter(|p| usize::from(p.far) == at).collect();
                    if !these.is_empty() {
                        self.rows(group, &these, &table.selection, table.link.as_deref(), &mut all);
                    }
                }
            } else {
                self.rows(group, &peers, &self.selection, None, &mut all);
            }
        }
        all
    }

    fn refused(&self) -> Vec<Refused> {
        let mut all = Vec::new();
        for peer in self.peers.ids().map(|id: PeerId| self.peers.get(id)) {
            for t in peer.tally.turned() {
                let Some(row) = self.table(peer).rows().get(usize::from(t.row)) else { continue };
                all.push(Refused {
                    operation: "send",
                    pid: peer.pid,
                    sizes: (row.from, row.up_to),
                    wanted: row.proto.name(),
                    way: t.to.name(),
                    why: why(t.why, peer),
                    tally: t.tally,
                });
            }
            let lent: Vec<_> = self.table(peer).rows().iter().filter(|row| row.lent).collect();
            if let (Some(first), Some(last)) = (lent.first(), lent.last()) {
                all.extend(peer.tally.missed().iter().map(|m| Refused {
                    operation: "send",
                    pid: peer.pid,
                    sizes: (first.from, last.up_to),
                    wanted: first.proto.name(),
                    way: m.to.name(),
                    why: why_unlent(m.why),
                    tally: m.tally,
                }));
            }
            for h in peer.tally.handed() {
                let Some(row) = self.table(peer).deeds().rows().get(usize::from(h.row)) else { continue };
                all.push(Refused {
                    operation: row.operation.name(),
                    pid: peer.pid,
                    sizes: (row.from, row.up_to),
                    wanted: row.mover.name(),
                    way: Mover::Target.name(),
                    why: why(h.why, peer),
                    tally: h.tally,
                });
            }
        }
        all
    }

    fn as_text(&self, went: &[Went], refused: &[Refused], beside: &[Circumstance]) -> String {
        let mut text = String::new();
        let name = self.name.map_or(String::new(), |n| n.to_string());
        let _ = writeln!(text, "rustmx explain: process {}, endpoint {name}", std::process::id());
        for w in went {
            let (from, to) = (w.sizes.0, end(w.sizes.1));
            let link = w.link.as_ref().map_or(String::new(), |link| format!("; by {link}"));
            let cost = w.cost.map_or(String::new(), |cost| format!("; {cost}"));
            let instead = w.instead.map_or(String::new(), |way| format!("; instead of {way}, see refused"));
            let said = w.origin.said();
            let Tally { count, bytes } = w.tally;
            let _ = writeln!(
                text,
                "  {:<6} {:<9} {from:>8} .. {to:<8} {:<9} {count:>9} {:<5} {bytes:>13} bytes  {}{cost}{link}{instead}{said}",
                w.operation,
                w.peers,
                w.way,
                plural(count, "time"),
                w.what
            );
        }
        for r in refused {
            let (from, to) = (r.sizes.0, end(r.sizes.1));
            let Tally { count, bytes } = r.tally;
            let _ = writeln!(
                text,
                "  refused: {} to process {}, {from} .. {to} by {}: {count} {}, {bytes} bytes, went by {}: {}",
                r.operation,
                r.pid,
                r.wanted,
                plural(count, "time"),
                r.way,
                r.why
            );
        }
        for c in beside {
            let _ = writeln!(text, "  {}: {}", c.about, c.says);
        }
        text
    }

    fn as_json(&self, went: &[Went], refused: &[Refused], beside: &[Circumstance]) -> String {
        let mut text = String::new();
        let name = self.name.map_or(String::new(), |n| n.to_string());
        let head = format!("{{\"rustmx\":\"explain\",\"process\":{},\"endpoint\":{}", std::process::id(), quoted(&name));
        for w in went {
            let (from, to, Tally { count, bytes }) = (w.sizes.0, end_json(w.sizes.1), w.tally);
            let (operation, peers, way, what) = (quoted(w.operation), quoted(w.peers), quoted(w.way), quoted(&w.what));
            let cost = w.cost.map_or(String::new(), |c| cost_json(&c));
            let link = w.link.as_ref().map_or(String::new(), |link| format!(",\"link\":{}", quoted(link)));
            let instead = w.instead.map_or(String::new(), |way| format!(",\"instead\":{}", quoted(way)));
            let _ = writeln!(
                text,
                "{head},\"operation\":{operation},\"peers\":{peers},\"from\":{from},\"to\":{to},\"protocol\":{way},\"how\":{what},\
                 \"by\":{},\"forced\":{},\"count\":{count},\"bytes\":{bytes}{cost}{link}{instead}}}",
                quoted(w.origin.name()),
                w.origin == Origin::Forced
            );
        }
        for r in refused {
            let (from, to, Tally { count, bytes }) = (r.sizes.0, end_json(r.sizes.1), r.tally);
            let (operation, wanted, way, why) = (quoted(r.operation), quoted(r.wanted), quoted(r.way), quoted(&r.why));
            let _ = writeln!(
                text,
                "{head},\"operation\":{operation},\"peer_process\":{},\"from\":{from},\"to\":{to},\"refused\":{wanted},\"protocol\":{way},\
                 \"why\":{why},\"count\":{count},\"bytes\":{bytes}}}",
                r.pid
            );
        }
        for c in beside {
            let _ = writeln!(text, "{head},\"about\":{}{}}}", quoted(c.about), c.members);
        }
        text
    }
}

fn end(to: usize) -> String {
    if to == MAX_MSG { "max".into() } else { to.to_string() }
}

/// JSON has no word for "as long as can be".
fn end_json(to: usize) -> String {
    if to == MAX_MSG { "null".into() } else { to.to_string() }
}

fn cost_json(cost: &RowCost) -> String {
    let ((from, from_ns), (to, to_ns)) = (cost.from, cost.to);
    let by = if cost.measured { "measured" } else { "modelled" };
    format!(",\"cost\":{{\"from\":{from},\"from_ns\":{from_ns:.0},\"to\":{to},\"to_ns\":{to_ns:.0},\"by\":{}}}", quoted(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_parameter() {
        assert_eq!([0, 1, 2, 3, 4].map(Telling::of), [None, Some(Telling::All), Some(Telling::Used), Some(Telling::Json), None]);
    }
}
