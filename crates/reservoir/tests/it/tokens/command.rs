//! Passwords from programs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_reservoir::{PasswordCommand, TokenProvider};
use forebay_testkit::{eventually, within};

use super::{TempFolder, refusal, secret};

fn shell(script: &str) -> PasswordCommand {
    PasswordCommand::new("sh").args(["-c", script])
}

#[tokio::test]
async fn the_program_runs_for_each_token() {
    let folder = TempFolder::new();
    let path = folder.write("password", "hunter2\n");
    let command = PasswordCommand::new("cat").arg(path);
    assert_eq!(secret(&command).await, "hunter2");
    folder.write("password", "hunter3");
    assert_eq!(secret(&command).await, "hunter3");
}

#[tokio::test]
async fn no_shell_reads_the_arguments() {
    let command = PasswordCommand::new("printf").args(["%s", "$HOME; * `id`"]);
    assert_eq!(secret(&command).await, "$HOME; * `id`");
}

#[tokio::test]
async fn the_program_gets_an_empty_input() {
    assert_eq!(secret(&shell("cat; echo hunter2")).await, "hunter2");
}

#[tokio::test]
async fn a_token_has_the_configured_validity() {
    let life = Duration::from_secs(900);
    let token = shell("echo hunter2").valid_for(life).token().await.unwrap();
    assert_eq!((token.secret.reveal(), token.valid_for), ("hunter2", Some(life)));
}

#[tokio::test]
async fn a_failure_shows_the_status_and_the_first_line_of_stderr() {
    let error = refusal(&shell("echo hunter2; echo no such role >&2; echo hunter2 >&2; exit 3")).await;
    assert_eq!(error, "password command sh: exit status: 3: no such role");
    assert_eq!(refusal(&shell("exit 1")).await, "password command sh: exit status: 1");
    let error = refusal(&shell("kill -TERM $$")).await;
    assert!(error.starts_with("password command sh: signal: 15"), "{error}");
    let error = refusal(&PasswordCommand::new("/no/such/program").arg("hunter2")).await;
    assert!(
        error.starts_with("password command /no/such/program: can't be started: No such file"),
        "{error}"
    );
    assert_eq!(refusal(&shell(":")).await, "password command sh: what it says is empty");
    assert_eq!(
        refusal(&shell(r"printf 'hunter2\377'")).await,
        "password command sh: what it says isn't UTF-8"
    );
}

#[tokio::test]
async fn arguments_are_not_shown() {
    let command = PasswordCommand::new("vault").arg("--token=hunter2");
    let shown = format!("{command:?} {command:#?}");
    assert!(shown.contains("vault") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn a_long_stderr_is_truncated_and_does_not_block_the_program() {
    // More than a pipe holds: if it weren't drained, the program would block.
    let script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1";
    let error = within("the program", refusal(&shell(script))).await;
    assert_eq!(error, format!("password command sh: exit status: 1: {}", "x".repeat(256)));
    let script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo hunter2";
    assert_eq!(within("the program", secret(&shell(script))).await, "hunter2");
}

#[tokio::test]
async fn a_program_with_too_much_output_is_killed() {
    let asked = within("the program", refusal(&shell("yes hunter2").timeout(Duration::MAX))).await;
    assert_eq!(asked, "password command sh: what it says is longer than 64 KiB");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_takes_too_long_is_an_error() {
    let begun = tokio::time::Instant::now();
    let error = refusal(&shell("sleep 3600")).await;
    assert_eq!(error, "password command sh: didn't end within 10s and was killed");
    let waited = begun.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(11)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_leaves_its_output_open_is_an_error() {
    let error = refusal(&shell("sleep 3600 & echo hunter2")).await;
    assert_eq!(error, "password command sh: didn't end within 10s and was killed");
}

/// Writes its process id and that of a child to `pids`, and waits.
const LINGERS: &str = r#"sleep 3600 & echo "$$ $!" > "$1/new"; mv "$1/new" "$1/pids"; wait"#;

async fn pids(folder: &TempFolder) -> Vec<u32> {
    eventually("the program writes its number", true, async || folder.path("pids").exists()).await;
    let pids = fs::read_to_string(folder.path("pids")).unwrap();
    let pids: Vec<u32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| runs(*pid)));
    pids
}

/// Returns whether the process runs; zombies don't.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']))
}

#[tokio::test]
async fn a_timeout_kills_the_program_and_its_children() {
    let folder = TempFolder::new();
    let command = shell(LINGERS).args(["sh"]).arg(&folder.0).timeout(Duration::from_secs(5));
    let asking = tokio::spawn(async move { refusal(&command).await });
    let pids = pids(&folder).await;
    assert_eq!(asking.await.unwrap(), "password command sh: didn't end within 5s and was killed");
    eventually("it is dead", false, async || pids.iter().any(|pid| runs(*pid))).await;
}

#[tokio::test]
async fn dropping_the_request_kills_the_program_and_its_children() {
    let folder = TempFolder::new();
    let command = shell(LINGERS).args(["sh"]).arg(&folder.0);
    let asking = tokio::spawn(async move { command.token().await });
    let pids = pids(&folder).await;
    asking.abort();
    eventually("it is dead", false, async || pids.iter().any(|pid| runs(*pid))).await;
}
