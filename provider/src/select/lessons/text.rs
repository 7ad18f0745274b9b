//! What jobs found out about links as the text of a file, and back. What a file says is checked here, once.

use super::{Entry, MOST_ENTRIES};
use crate::log::quoted;
use crate::select::fields::{Fields, number, parse, whole};
use crate::select::profile::text::{key, write_key};
use crate::transport::tcp::{By, Copies, Lanes, Lesson, MOST_LANES, SIZES};
use std::fmt::Write;
use toml::de::DeValue;

/// The format's number; another one is not read.
const FORMAT: u32 = 1;
/// Longest name of a link in bytes: an interface's has at most 15.
const LONGEST_NAME: usize = 100;
/// No rate (bytes a nanosecond) and no cost (nanoseconds a KiB) is so large.
const ABSURD: f64 = 1e9;

const HEAD: &str = "\
# Made by jobs as they end (FI_RUSTMX_LEARN): what they found out about the links of this host, with which the next ones begin.
# It may be deleted at any time. Rates are MB/s by so many connections, costs nanoseconds for a KiB from so many bytes on:
# copied by the kernel, without a copy, without a copy out of registered buffers (0: not measured).
";

/// The file's text.
pub(super) fn write(entries: &[Entry]) -> String {
    let mut out = format!("{HEAD}format = {FORMAT}\n");
    for Entry { link, key, lesson } in entries {
        let _ = writeln!(out, "\n[[link]]\nlink = {}", quoted(link));
        write_key(&mut out, key);
        // Debug, not Display: always with a point, and as many digits as give the same number again.
        if let Some((Lanes { number, rates }, By::Job(day))) = lesson.lanes {
            let known = rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0);
            let rates: Vec<String> = known.map(|(less, rate)| format!("[{}, {:?}]", less + 1, rate * 1e3)).collect();
            let _ = writeln!(out, "lanes = {{ day = \"{}\", number = {number}, rates = [{}] }}", date(day), rates.join(", "));
        }
        if let Some((Copies { copied, costs }, By::Job(day))) = lesson.copies {
            let known = SIZES.iter().zip(costs).filter(|(_, costs)| costs.iter().any(|cost| *cost > 0.0));
            let costs: Vec<String> = known.map(|(from, [a, b, c])| format!("[{from}, {a:?}, {b:?}, {c:?}]")).collect();
            let _ = writeln!(out, "copies = {{ day = \"{}\", copied = {copied}, costs = [{}] }}", date(day), costs.join(", "));
        }
        if let Some((micros, By::Job(day))) = lesson.round_trip {
            let _ = writeln!(out, "round_trip = {{ day = \"{}\", microseconds = {micros} }}", date(day));
        }
    }
    out
}

/// Reads a file's text.
///
/// # Errors
/// What is wrong, and where, for people.
pub(super) fn read(text: &str) -> Result<Vec<Entry>, String> {
    parse(text, FORMAT, |root| {
        if !root.has("link") {
            return Ok(Vec::new());
        }
        let mut entries = Vec::new();
        for value in root.list("link")? {
            if entries.len() == MOST_ENTRIES {
                return Err(format!("more than {MOST_ENTRIES} links"));
            }
            let table = value.as_table().ok_or_else(|| root.wrong("link", "a list of tables"))?;
            entries.push(entry(&Fields { of: "[[link]]", table })?);
        }
        Ok(entries)
    })
}

fn entry(fields: &Fields) -> Result<Entry, String> {
    let link = fields.text("link")?;
    if link.is_empty() || link.len() > LONGEST_NAME || link.chars().any(char::is_control) {
        return Err(fields.wrong("link", "the name of a link"));
    }
    let part = |name: &str, of| if fields.has(name) { fields.table(name, of).map(Some) } else { Ok(None) };
    let mut lesson = Lesson::default();
    if let Some(part) = part("lanes", "lanes")? {
        lesson.lanes = Some((lanes(&part)?, day(&part)?));
    }
    if let Some(part) = part("copies", "copies")? {
        lesson.copies = Some((copies(&part)?, day(&part)?));
    }
    if let Some(part) = part("round_trip", "round_trip")? {
        lesson.round_trip = Some((part.whole("microseconds")?, day(&part)?));
    }
    Ok(Entry { link: link.into(), key: key(fields)?, lesson })
}

fn lanes(part: &Fields) -> Result<Lanes, String> {
    let allowed = |number: &usize| (1..=MOST_LANES).contains(number);
    let number = Some(part.whole("number")?).filter(allowed);
    let number = number.ok_or_else(|| part.wrong("number", &format!("a number from 1 to {MOST_LANES}")))?;
    let mut rates = [0.0; MOST_LANES];
    for pair in part.list("rates")? {
        let rate = |pair: &DeValue| match values(pair)?[..] {
            [width, rate] => Some((whole(width).filter(allowed)?, sensible(rate)?)),
            _ => None,
        };
        let (width, rate) = rate(pair).ok_or_else(|| part.wrong("rates", "a list of [connections, MB/s]"))?;
        rates[width - 1] = rate / 1e3;
    }
    Ok(Lanes { number, rates })
}

fn copies(part: &Fields) -> Result<Copies, String> {
    let mut costs = <[[f64; _]; _]>::default();
    for row in part.list("costs")? {
        let known = |row: &DeValue| match values(row)?[..] {
            [from, a, b, c] => {
                let from: usize = whole(from)?;
                Some((SIZES.iter().position(|size| *size == from), [sensible(a)?, sensible(b)?, sensible(c)?]))
            }
            _ => None,
        };
        let wrong = || part.wrong("costs", "a list of [bytes, copied, without a copy, registered]");
        // Another version may tell other sizes apart.
        if let (Some(at), row) = known(row).ok_or_else(wrong)? {
            costs[at] = row;
        }
    }
    Ok(Copies { copied: part.truth("copied")?, costs })
}

fn values<'a>(value: &'a DeValue<'a>) -> Option<Vec<&'a DeValue<'a>>> {
    Some(value.as_array()?.iter().map(toml::Spanned::get_ref).collect())
}

fn sensible(value: &DeValue) -> Option<f64> {
    number(value).filter(|n| (0.0..ABSURD).contains(n))
}

fn day(part: &Fields) -> Result<By, String> {
    let day = day_of(part.text("day")?).ok_or_else(|| part.wrong("day", "a date such as 2026-01-31"))?;
    Ok(By::Job(day))
}

/// A day (since 1970) as people write it.
pub fn date(day: u32) -> String {
    // Of the calendar that repeats after 400 years, with years that begin in March.
    let days = i64::from(day) + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + i64::from(month <= 2))
}

/// The same back, for days that there are.
fn day_of(text: &str) -> Option<u32> {
    let mut parts = text.split('-').map(|part| part.parse::<i64>().ok());
    let (Some(Some(year)), Some(Some(month)), Some(Some(day)), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u32::try_from(days).ok().filter(|days| date(*days) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_as_people_write_them() {
        for (day, text) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_781, "2026-11-24"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!((date(day).as_str(), day_of(text)), (text, Some(day)));
        }
        assert!((0..60_000).all(|day| day_of(&date(day)) == Some(day)));
        for bad in [
            "",
            "2026",
            "2026-02-30",
            "2026-1-1",
            "2026-01-01-01",
            "1969-12-31",
            "99999-01-01",
            "2026-00-10",
            "2026-13-01",
            "-1-1-1",
        ] {
            assert_eq!(day_of(bad), None, "{bad}");
        }
    }
}
