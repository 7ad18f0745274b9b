//! A profile as the text of a file, and back. What a file says is checked here, once.

use super::{Key, MOST_LINKS, Profile};
use crate::config::Config;
use crate::config::force::Way;
use crate::log::quoted;
use crate::select::fields::{Fields, number, parse, whole};
use crate::select::model::{About, Curve, DeedAbout, MOST_POINTS, Memory, Model, Mover, Operation, PeerClass, Point, Source};
use crate::sys::machine::Machine;
use std::fmt::Write;
use toml::de::DeValue;

/// The format's number; another one is not read.
const FORMAT: u32 = 1;

/// The file's text.
pub(super) fn write(profile: &Profile) -> String {
    let Profile { key, best, kernel_copies, handover_ns, model, links } = profile;
    let mut out = String::from(
        "# Made by `rustmx tune`: how long messages took on this machine. The provider uses it where the key fits.\n",
    );
    let _ = writeln!(out, "format = {FORMAT}\n\n[key]");
    write_key(&mut out, key);
    // Debug, not Display: always with a point, and as many digits as give the same number again.
    let _ = writeln!(out, "\n[found]\nkernel_copies = {kernel_copies}\nhandover_ns = {handover_ns:?}");
    if !best.is_empty() {
        let _ = writeln!(out, "best = [{}]", list(best));
    }
    if model.until_read {
        let _ = writeln!(out, "until_read = true");
    }
    write_curves(&mut out, model, None);
    for (link, model) in links {
        write_curves(&mut out, model, Some(link));
    }
    out
}

/// Lines that [`key`] reads.
pub(in crate::select) fn write_key(out: &mut String, key: &Key) {
    let Key { machine, settings } = key;
    let _ = writeln!(out, "processor = {}\nkernel = {}", quoted(&machine.processor), quoted(&machine.kernel));
    let _ = writeln!(out, "cores = {}", machine.cores);
    if let Some(hypervisor) = &machine.hypervisor {
        let _ = writeln!(out, "hypervisor = {}", quoted(hypervisor));
    }
    let _ = writeln!(out, "settings = [{}]", list(settings));
}

fn list(texts: &[String]) -> String {
    texts.iter().map(|s| quoted(s)).collect::<Vec<_>>().join(", ")
}

fn write_curves(out: &mut String, model: &Model, link: Option<&str>) {
    let messages = model.curves().iter().map(|(about, curve)| {
        let About { operation, peer, memory, source, way } = *about;
        ((operation, peer, way.name(), memory, source), curve)
    });
    // Of memory and source nothing is told apart there.
    let deeds = model
        .deeds()
        .iter()
        .map(|((operation, peer, mover), curve)| ((*operation, *peer, mover.name(), Memory::Private, Source::Reused), curve));
    for ((operation, peer, way, memory, source), curve) in messages.chain(deeds) {
        let _ = writeln!(out, "\n[[cost]]\nway = {}", quoted(way));
        for (name, word) in
            [("operation", operation.name()), ("peer", peer.name()), ("memory", memory.name()), ("source", source.name())]
        {
            let _ = writeln!(out, "{name} = {}", quoted(word));
        }
        if let Some(link) = link {
            let _ = writeln!(out, "link = {}", quoted(link));
        }
        let points = curve.points().iter().map(|p| format!("  [{}, {:?}, {:?}],\n", p.size, p.ns, p.spread));
        let _ = writeln!(out, "points = [ # bytes, nanoseconds, spread\n{}]", points.collect::<String>());
    }
}

/// Reads a file's text. A curve of something that this version has no word for is passed over, so that it can read a newer one's file;
/// nothing else is.
///
/// # Errors
/// What is wrong, and where, for people.
pub(super) fn read(text: &str) -> Result<Profile, String> {
    parse(text, FORMAT, profile)
}

fn profile(root: &Fields) -> Result<Profile, String> {
    let (key, found) = (key(&root.table("key", "[key]")?)?, root.table("found", "[found]")?);
    let (handover_ns, kernel_copies) = (found.number("handover_ns")?, found.truth("kernel_copies")?);
    let best = if found.has("best") { found.texts("best")? } else { Vec::new() };
    sound(&best)?;
    let until_read = found.has("until_read") && found.truth("until_read")?;
    let (mut model, mut links) = (Model::default(), Vec::new());
    model.until_read = until_read;
    for cost in root.list("cost")? {
        let table = cost.as_table().ok_or_else(|| root.wrong("cost", "a list of tables"))?;
        let fields = Fields { of: "[[cost]]", table };
        let curve = Curve::new(points(&fields)?)?;
        let Some(measured) = measured(&fields)? else { continue };
        let model = match measured.peer() {
            PeerClass::Network => of_link(&mut links, fields.text("link")?)?,
            PeerClass::SameHost => &mut model,
        };
        match measured {
            Measured::Messages(about) => model.add(about, curve)?,
            Measured::Deeds(about) => model.add_deed(about, curve)?,
        }
    }
    Ok(Profile { key, best, kernel_copies, handover_ns, model, links })
}

/// What is said of a parameter that this version does not measure is passed over; of one that it does, the value must be possible.
fn sound(best: &[String]) -> Result<(), String> {
    for text in best {
        if let Some((param, value)) = super::best(text)
            && !param.suggest(&mut Config::default(), value)
        {
            return Err(format!("`best` of [found] says {text}; allowed is {}", param.range()));
        }
    }
    Ok(())
}

/// Where something was measured, and with what.
///
/// # Errors
/// What is wrong, for people.
pub(in crate::select) fn key(fields: &Fields) -> Result<Key, String> {
    let hypervisor = if fields.has("hypervisor") { Some(fields.text("hypervisor")?.into()) } else { None };
    let (processor, kernel, cores) = (fields.text("processor")?.into(), fields.text("kernel")?.into(), fields.whole("cores")?);
    let settings = fields.texts("settings")?;
    Ok(Key { machine: Machine { processor, kernel, cores, hypervisor }, settings })
}

/// What was said of a link so far.
fn of_link<'a>(links: &'a mut Vec<(String, Model)>, link: &str) -> Result<&'a mut Model, String> {
    let at = match links.iter().position(|(known, _)| known == link) {
        Some(at) => at,
        None if links.len() == MOST_LINKS => return Err(format!("more than {MOST_LINKS} links")),
        None => {
            links.push((link.into(), Model::default()));
            links.len() - 1
        }
    };
    Ok(&mut links[at].1)
}

/// What a curve is about.
enum Measured {
    Messages(About),
    Deeds(DeedAbout),
}

impl Measured {
    fn peer(&self) -> PeerClass {
        match self {
            Measured::Messages(about) => about.peer,
            Measured::Deeds((_, peer, _)) => *peer,
        }
    }
}

/// `None`: there is a word that this version does not know.
fn measured(fields: &Fields) -> Result<Option<Measured>, String> {
    let operation = Operation::named(fields.text("operation")?);
    let peer = PeerClass::named(fields.text("peer")?);
    let memory = Memory::named(fields.text("memory")?);
    let source = Source::named(fields.text("source")?);
    let way = fields.text("way")?;
    let (Some(operation), Some(peer), Some(memory), Some(source)) = (operation, peer, memory, source) else { return Ok(None) };
    if operation != Operation::Send {
        return Ok(Mover::named(way).map(|mover| Measured::Deeds((operation, peer, mover))));
    }
    let way = Way::named(way).filter(|w| Way::CARRIERS.contains(w));
    Ok(way.map(|way| Measured::Messages(About { operation, peer, memory, source, way })))
}

fn points(fields: &Fields) -> Result<Vec<Point>, String> {
    let wrong = || fields.wrong("points", "a list of [bytes, nanoseconds, spread]");
    let point = |value: &DeValue| {
        let [size, ns, spread] = value.as_array()?.iter().map(toml::Spanned::get_ref).collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Point { size: whole(size)?, ns: number(ns)?, spread: number(spread)? })
    };
    // One more than there may be is enough to be refused.
    fields.list("points")?.take(MOST_POINTS + 1).map(|v| point(v).ok_or_else(wrong)).collect()
}
