//! lower() and upper() of every Unicode character agree with every collation provider, or are
//! refused.

use forebay_filter::{Collation, Column, Filter, Schema};

use crate::server::ReferenceServer;

#[test]
fn every_character_changes_case_as_the_server_changes_it_or_is_refused() {
    check(0x1_ffff); // No letter above has two cases.
}

#[test]
#[ignore = "two minutes: the higher planes have only Chinese characters and private use"]
fn every_character_of_every_plane_changes_case_as_the_server_changes_it_or_is_refused() {
    check(0x10_ffff);
}

fn check(last: u32) {
    let icu = |locale: &str| Collation::Icu(locale.to_owned());
    for (version, options, collation) in [
        (15, "", Collation::C),
        (15, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'", icu("en-US")),
        (15, "LOCALE 'C.UTF-8'", Collation::Libc("C.UTF-8".to_owned())),
        (18, "", Collation::C),
        (18, "LOCALE_PROVIDER icu ICU_LOCALE 'und' LOCALE 'C'", icu("und")),
        (18, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'", Collation::Builtin),
        (18, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'PG_UNICODE_FAST'", Collation::Builtin),
    ] {
        let server = ReferenceServer::start(version, options, &collation, 1, 1);
        let sql = format!(
            "SELECT chr(i), lower(chr(i)), upper(chr(i)) FROM generate_series(1, {last}) AS i
             WHERE NOT i BETWEEN 55296 AND 57343"
        );
        let schema = Schema {
            table: None,
            columns: ["c", "l", "u"].map(|name| Column::new(name, 25, "text")).to_vec(),
            database_collation: collation.clone(),
            server_version: version,
        };
        let lower = Filter::parse("lower(c) = l", &[], &schema).expect("it is a clause");
        let upper = Filter::parse("upper(c) = u", &[], &schema).expect("it is a clause");
        let (mut sure, mut all) = (0, 0);
        for row in server.run(&sql) {
            for filter in [&lower, &upper] {
                all += 1;
                match filter.matches(&row) {
                    Ok(same) => {
                        assert_eq!(same, Some(true), "{collation:?} on {version}: {row:?}");
                        sure += 1;
                    }
                    Err(error) => assert_eq!(error.sqlstate(), "0A000", "{row:?}"),
                }
            }
        }
        let least = if collation == Collation::C { 100 } else { 95 };
        assert!(all > 250_000 && sure * 100 >= all * least, "{collation:?}: {sure} of {all} sure");
    }
}
