//! Collations: maps a collation of the catalog to one of the filter.

use forebay_shapes::filter::Collation;

/// The locale of a row of pg_collation or pg_database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Locale<'a> {
    /// `c` is the C library, `i` ICU, `b` built in.
    pub(super) provider: &'a str,
    /// LC_COLLATE of the C library: the order.
    pub(super) collate: Option<&'a str>,
    /// LC_CTYPE of the C library: classes and case of characters.
    pub(super) ctype: Option<&'a str>,
    /// Locale of the other providers: for the order, and for classes and case.
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
            // The built-in `C` equals the C library's: its letters are ASCII.
            "b" if is_c(locale) => Collation::C,
            "b" => Collation::Builtin,
            _ if is_c(collate) && is_c(ctype) => Collation::C,
            // The order of a language, but character classes of `C`. Filters don't support that,
            // and they compare nothing with a nondeterministic collation.
            _ if is_c(ctype) => Collation::Nondeterministic,
            // Filters never order by a C library locale, so only LC_CTYPE matters.
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
    fn a_libc_locale_is_c_only_if_both_its_order_and_its_letters_are() {
        assert_eq!(libc("C", "C"), Collation::C);
        assert_eq!(libc("POSIX", "C"), Collation::C);
        assert_eq!(libc("en_US.UTF-8", "en_US.UTF-8"), Collation::Libc("en_US.UTF-8".to_owned()));
        assert_eq!(libc("C", "tr_TR.UTF-8"), Collation::Libc("tr_TR.UTF-8".to_owned()));
        assert_eq!(libc("en_US.UTF-8", "C"), Collation::Nondeterministic);
    }

    #[test]
    fn icu_and_builtin_locales_map_to_their_own_collations() {
        assert_eq!(other("i", "und", true), Collation::Icu("und".to_owned()));
        assert_eq!(other("i", "und-u-ks-level2", false), Collation::Nondeterministic);
        assert_eq!(other("b", "C.UTF-8", true), Collation::Builtin);
        assert_eq!(other("b", "C", true), Collation::C);
    }
}
