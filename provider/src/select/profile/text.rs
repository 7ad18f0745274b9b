//! A profile as the text of a file, and back. What a file says is checked here, once.

use super::{Key, MOST_LINKS, Profile};
use crate::config::Config;
use crate::config::force::Way;
use crate::log::quoted;
use crate::select::model::{About, Curve, MOST_POINTS, Memory, Model, Operation, PeerClass, Point, Source};
use crate::sys::machine::Machine;
use std::fmt::Write;
use toml::de::{DeTable, DeValue};

/// The format's number; another one is not read.
const FORMAT: u32 = 1;

/// The file's text.
pub(super) fn write(profile: &Profile) -> String {
    let Profile { key: Key { machine, settings }, best, kernel_copies, handover_ns, model, links } = profile;
    let mut out = String::from(
        "# Made by `rustmx tune`: how long messages took on this machine. The provider uses it where the key fits.\n",
    );
    let _ = writeln!(out, "format = {FORMAT}\n\n[key]");
    let _ = writeln!(out, "processor = {}\nkernel = {}", quoted(&machine.processor), quoted(&machine.kernel));
    let _ = writeln!(out, "cores = {}", machine.cores);
    if let Some(hypervisor) = &machine.hypervisor {
        let _ = writeln!(out, "hypervisor = {}", quoted(hypervisor));
    }
    let list = |texts: &[String]| texts.iter().map(|s| quoted(s)).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "settings = [{}]", list(settings));
    // Debug, not Display: always with a point, and as many digits as give the same number again.
    let _ = writeln!(out, "\n[found]\nkernel_copies = {kernel_copies}\nhandover_ns = {handover_ns:?}");
    if !best.is_empty() {
        let _ = writeln!(out, "best = [{}]", list(best));
    }
    write_curves(&mut out, model, None);
    for (link, model) in links {
        write_curves(&mut out, model, Some(link));
    }
    out
}

fn write_curves(out: &mut String, model: &Model, link: Option<&str>) {
    for (about, curve) in model.curves() {
        let _ = writeln!(out, "\n[[cost]]\nway = {}", quoted(about.way.name()));
        let About { operation, peer, memory, source, way: _ } = about;
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
    let root = DeTable::parse(text).map_err(|e| {
        let line = e.span().and_then(|span| text.get(..span.start)).map_or(1, |before| before.matches('\n').count() + 1);
        format!("line {line} is no TOML ({})", e.message())
    })?;
    let root = Fields { of: "the file", table: root.get_ref() };
    let format: u32 = root.whole("format")?;
    if format != FORMAT {
        return Err(format!("its format is {format}, and this version reads {FORMAT}"));
    }
    let (key, found) = (root.table("key", "[key]")?, root.table("found", "[found]")?);
    let machine = Machine {
        processor: key.text("processor")?.into(),
        kernel: key.text("kernel")?.into(),
        cores: key.whole("cores")?,
        hypervisor: if key.table.contains_key("hypervisor") { Some(key.text("hypervisor")?.into()) } else { None },
    };
    let settings = key.texts("settings")?;
    let best = if found.table.contains_key("best") { found.texts("best")? } else { Vec::new() };
    sound(&best)?;
    let handover_ns = number(found.get("handover_ns")?).ok_or_else(|| found.wrong("handover_ns", "a number"))?;
    let kernel_copies = found.get("kernel_copies")?.as_bool().ok_or_else(|| found.wrong("kernel_copies", "true or false"))?;
    let (mut model, mut links) = (Model::default(), Vec::new());
    for cost in root.list("cost")? {
        let table = cost.as_table().ok_or_else(|| root.wrong("cost", "a list of tables"))?;
        let fields = Fields { of: "[[cost]]", table };
        let curve = Curve::new(points(&fields)?)?;
        match about(&fields)? {
            Some(about) if about.peer == PeerClass::Network => of_link(&mut links, fields.text("link")?)?.add(about, curve)?,
            Some(about) => model.add(about, curve)?,
            None => {}
        }
    }
    Ok(Profile { key: Key { machine, settings }, best, kernel_copies, handover_ns, model, links })
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

fn about(fields: &Fields) -> Result<Option<About>, String> {
    let operation = Operation::named(fields.text("operation")?);
    let peer = PeerClass::named(fields.text("peer")?);
    let memory = Memory::named(fields.text("memory")?);
    let source = Source::named(fields.text("source")?);
    let way = Way::named(fields.text("way")?).filter(|w| Way::CARRIERS.contains(w));
    let known = (operation, peer, memory, source, way);
    let (Some(operation), Some(peer), Some(memory), Some(source), Some(way)) = known else { return Ok(None) };
    Ok(Some(About { operation, peer, memory, source, way }))
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

fn whole<T: std::str::FromStr>(value: &DeValue) -> Option<T> {
    value.as_integer().filter(|i| i.radix() == 10).and_then(|i| i.as_str().parse().ok())
}

fn number(value: &DeValue) -> Option<f64> {
    let n = value.as_float().and_then(|f| f.as_str().parse().ok()).or_else(|| whole(value));
    n.filter(|n: &f64| n.is_finite())
}

/// A table of the file, and what people call it.
struct Fields<'a> {
    of: &'static str,
    table: &'a DeTable<'a>,
}

impl<'a> Fields<'a> {
    fn wrong(&self, name: &str, wanted: &str) -> String {
        format!("`{name}` of {} is not {wanted}", self.of)
    }

    fn get(&self, name: &str) -> Result<&'a DeValue<'a>, String> {
        self.table.get(name).map(toml::Spanned::get_ref).ok_or_else(|| format!("{} lacks `{name}`", self.of))
    }

    fn text(&self, name: &str) -> Result<&'a str, String> {
        self.get(name)?.as_str().ok_or_else(|| self.wrong(name, "a text"))
    }

    fn whole<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        whole(self.get(name)?).ok_or_else(|| self.wrong(name, "a whole number"))
    }

    fn table(&self, name: &str, of: &'static str) -> Result<Fields<'a>, String> {
        let table = self.get(name)?.as_table().ok_or_else(|| self.wrong(name, "a table"))?;
        Ok(Fields { of, table })
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let text = |v: &DeValue| v.as_str().map(String::from).ok_or_else(|| self.wrong(name, "a list of texts"));
        self.list(name)?.map(text).collect()
    }

    fn list(&self, name: &str) -> Result<impl Iterator<Item = &'a DeValue<'a>>, String> {
        let list = self.get(name)?.as_array().ok_or_else(|| self.wrong(name, "a list"))?;
        Ok(list.iter().map(toml::Spanned::get_ref))
    }
}
