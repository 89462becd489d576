//! Checks that the README's code is part of `examples/axum_app.rs`.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    let instead = [("\"/var/lib/app\"", "folder.path()"), ("\"postgres://app@db.internal/shop\"", "&url")];
    let blocks =
        readme_blocks_run(include_str!("../README.md"), include_str!("../examples/axum_app.rs"), &instead);
    assert!(blocks > 0, "does the README mark its code with ```rust?");
}
