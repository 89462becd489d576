//! Which of the filter's collations one of the catalog is.

use forebay_shapes::filter::Collation;

/// A collation's row of pg_collation, or a database's of pg_database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Locale<'a> {
    /// `c` for the C library, `i` for ICU, `b` for Postgres' own.
    pub(super) provider: &'a str,
    /// The C library's for the order.
    pub(super) collate: Option<&'a str>,
    /// The C library's for letters.
    pub(super) ctype: Option<&'a str>,
    /// The other providers' for both.
    pub(super) locale: Option<&'a str>,
    pub(super) is_deterministic: bool,
}

impl Locale<'_> {
    pub(super) fn collation(self) -> Collation {
        let locale = self.locale.unwrap_or_default();
        let (collate, ctype) = (self.collate.unwrap_or_default(), self.ctype.unwrap_or_default());
        let is_c = |name: &str| name == "C" || name == "POSIX";
        match self.provider {
            _ if !self.is_deterministic => Collation::Nondeterministic,
            "i" => Collation::Icu(locale.to_owned()),
            // Postgres' own `C` is the same as the C library's: its letters are ASCII.
            "b" if is_c(locale) => Collation::C,
            "b" => Collation::Builtin,
            _ if is_c(collate) && is_c(ctype) => Collation::C,
            // An order of one language, and letters of none: no filter knows it, so it may judge nothing.
            _ if is_c(ctype) => Collation::Nondeterministic,
            // Filters order by no locale of the C library, so it is the one for letters that counts.
            _ => Collation::Libc(ctype.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libc(collate: &str, ctype: &str) -> Collation {
        let (collate, ctype) = (Some(collate), Some(ctype));
        Locale { provider: "c", collate, ctype, locale: None, is_deterministic: true }.collation()
    }

    fn other(provider: &str, locale: &str, is_deterministic: bool) -> Collation {
        let locale = Some(locale);
        Locale { provider, collate: Some("C"), ctype: Some("C"), locale, is_deterministic }.collation()
    }

    #[test]
    fn a_locale_is_bytes_only_if_its_order_and_its_letters_are() {
        assert_eq!(libc("C", "C"), Collation::C);
        assert_eq!(libc("POSIX", "C"), Collation::C);
        assert_eq!(libc("en_US.UTF-8", "en_US.UTF-8"), Collation::Libc("en_US.UTF-8".to_owned()));
        assert_eq!(libc("C", "tr_TR.UTF-8"), Collation::Libc("tr_TR.UTF-8".to_owned()));
        assert_eq!(libc("en_US.UTF-8", "C"), Collation::Nondeterministic);
    }

    #[test]
    fn other_providers_have_their_own() {
        assert_eq!(other("i", "und", true), Collation::Icu("und".to_owned()));
        assert_eq!(other("i", "und-u-ks-level2", false), Collation::Nondeterministic);
        assert_eq!(other("b", "C.UTF-8", true), Collation::Builtin);
        assert_eq!(other("b", "C", true), Collation::C);
    }
}
