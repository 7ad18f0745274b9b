//! Reading files that are TOML: a table whose fields are asked for one by one, so that each mistake is told by its name.

use toml::de::{DeTable, DeValue};

/// A table of a file, and what people call it.
pub(super) struct Fields<'a> {
    pub of: &'static str,
    pub table: &'a DeTable<'a>,
}

/// Reads a file's text into what `read` makes of its root, if its format has the number `format`.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn parse<T>(text: &str, format: u32, read: impl FnOnce(&Fields) -> Result<T, String>) -> Result<T, String> {
    let root = DeTable::parse(text).map_err(|e| {
        let line = e.span().and_then(|span| text.get(..span.start)).map_or(1, |before| before.matches('\n').count() + 1);
        format!("line {line} is no TOML ({})", e.message())
    })?;
    let root = Fields { of: "the file", table: root.get_ref() };
    match root.whole::<u32>("format")? {
        theirs if theirs != format => Err(format!("its format is {theirs}, and this version reads {format}")),
        _ => read(&root),
    }
}

/// A whole number that is written as people write one.
pub(super) fn whole<T: std::str::FromStr>(value: &DeValue) -> Option<T> {
    value.as_integer().filter(|i| i.radix() == 10).and_then(|i| i.as_str().parse().ok())
}

/// A finite number.
pub(super) fn number(value: &DeValue) -> Option<f64> {
    let n = value.as_float().and_then(|f| f.as_str().parse().ok()).or_else(|| whole(value));
    n.filter(|n: &f64| n.is_finite())
}

impl<'a> Fields<'a> {
    pub fn wrong(&self, name: &str, wanted: &str) -> String {
        format!("`{name}` of {} is not {wanted}", self.of)
    }

    pub fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    pub fn get(&self, name: &str) -> Result<&'a DeValue<'a>, String> {
        self.table.get(name).map(toml::Spanned::get_ref).ok_or_else(|| format!("{} lacks `{name}`", self.of))
    }

    pub fn text(&self, name: &str) -> Result<&'a str, String> {
        self.get(name)?.as_str().ok_or_else(|| self.wrong(name, "a text"))
    }

    pub fn whole<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        whole(self.get(name)?).ok_or_else(|| self.wrong(name, "a whole number"))
    }

    pub fn number(&self, name: &str) -> Result<f64, String> {
        number(self.get(name)?).ok_or_else(|| self.wrong(name, "a number"))
    }

    pub fn truth(&self, name: &str) -> Result<bool, String> {
        self.get(name)?.as_bool().ok_or_else(|| self.wrong(name, "true or false"))
    }

    pub fn table(&self, name: &str, of: &'static str) -> Result<Fields<'a>, String> {
        let table = self.get(name)?.as_table().ok_or_else(|| self.wrong(name, "a table"))?;
        Ok(Fields { of, table })
    }

    pub fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let text = |v: &DeValue| v.as_str().map(String::from).ok_or_else(|| self.wrong(name, "a list of texts"));
        self.list(name)?.map(text).collect()
    }

    pub fn list(&self, name: &str) -> Result<impl Iterator<Item = &'a DeValue<'a>>, String> {
        let list = self.get(name)?.as_array().ok_or_else(|| self.wrong(name, "a list"))?;
        Ok(list.iter().map(toml::Spanned::get_ref))
    }
}
