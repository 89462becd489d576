//! Tests of the layers of settings.

use std::ffi::OsString;
use std::path::Path;

use crate::command_settings::CommandDeclaration;
use crate::setting_layers::{LayerError, SettingLayers};
use crate::setting_origin::SettingOrigin;
use crate::test_program::GateSettings;

fn layered(file: &str, variables: &[(&str, &str)]) -> Result<SettingLayers, LayerError> {
    let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
    layers.text(file, Path::new("gate.toml"))?;
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    layers.environment(variables)?;
    Ok(layers)
}

#[test]
fn variables_override_the_file_and_flags_override_variables() {
    let file = "[gate]\nlisten = \"a\"\nupstream = \"b\"\ndrain_timeout_ms = 5\n";
    let variables = [("SHOP_GATE_UPSTREAM", "e"), ("SHOP_GATE_DRAIN_TIMEOUT_MS", "6"), ("HOME", "/")];
    let mut layers = layered(file, &variables).unwrap();
    layers.flag(layers.command().setting("gate.drain_timeout_ms").unwrap(), 7.into());
    let get = |path| layers.get(path).map(|(value, origin)| (value.clone(), origin.clone())).unwrap();
    let variable = SettingOrigin::Variable("SHOP_GATE_UPSTREAM".into());
    assert_eq!(get("gate.listen"), ("a".into(), SettingOrigin::File("gate.toml".into())));
    assert_eq!(get("gate.upstream"), ("e".into(), variable));
    assert_eq!(get("gate.drain_timeout_ms"), (7.into(), SettingOrigin::Flag("--drain-timeout-ms".into())));
}

#[test]
fn the_order_of_the_calls_does_not_matter() {
    let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
    layers.flag(layers.command().setting("gate.drain_timeout_ms").unwrap(), 7.into());
    layers.environment([("STALL_STREAMS", "3")]).unwrap();
    layers.environment([("SHOP_GATE_UPSTREAM", "e"), ("SHOP_ADMISSION_TOTAL", "4")]).unwrap();
    layers.environment([("STALL_STREAMS", "5"), ("SHOP_GATE_DRAIN_TIMEOUT_MS", "6")]).unwrap();
    let file = "[gate]\nupstream = \"b\"\ndrain_timeout_ms = 5\ndoor = \"open\"\n[admission]\ntotal = 2\n";
    layers.text(file, Path::new("gate.toml")).unwrap();
    layers.text("[gate]\ndoor = \"closed\"\n", Path::new("later.toml")).unwrap();
    let get = |path| layers.get(path).unwrap().0.clone();
    assert_eq!(get("gate.drain_timeout_ms"), 7.into(), "a flag is stronger");
    assert_eq!(get("gate.upstream"), "e".into(), "a variable is stronger than a file");
    assert_eq!(get("admission.total"), 4.into(), "our variable is stronger than another program's");
    assert_eq!(get("gate.door"), "closed".into(), "the later file is stronger");
    assert_eq!(layers.notices().len(), 2, "notices of both environments");
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_utf_8_is_an_error_only_if_it_is_ours() {
    use std::os::unix::ffi::OsStringExt as _;

    let latin = || OsString::from_vec(b"caf\xe9".to_vec());
    let read = |name: OsString| {
        let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
        layers.environment([(name, latin()), ("SHOP_GATE_UPSTREAM".into(), "e".into())]).map(|()| layers)
    };
    for foreign in ["LC_NAME".into(), "SHOP_VENV".into(), latin()] {
        assert_eq!(read(foreign).unwrap().get("gate.upstream").unwrap().0.as_str(), Some("e"));
    }
    for ours in ["SHOP_GATE_LISTEN", "SHOP_GATE_LISEN", "STALL_STREAMS"] {
        let error = read(ours.into()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("the environment variable {ours} has an invalid value: it is not valid UTF-8")
        );
    }
}

#[test]
fn a_variable_is_parsed_as_the_type_of_its_setting() {
    let variables = [
        ("SHOP_ADMISSION_TOTAL", "12"),
        ("SHOP_GATE_STREAM_ROUTES", "POST /a, GET /b/**"),
        ("SHOP_GATE_FORWARD_USER_HEADER", "1"),
        ("SHOP_ADMIN_INSECURE", "true"),
    ];
    let layers = layered("", &variables).unwrap();
    let get = |path| layers.get(path).unwrap().0.clone();
    assert_eq!(get("admission.total"), 12.into());
    assert_eq!(get("gate.stream_routes"), vec!["POST /a", "GET /b/**"].into());
    assert_eq!(get("gate.forward_user_header"), "1".into(), "a number for a text setting");
    assert_eq!(get("admin.insecure"), true.into());
}

#[test]
fn an_unknown_key_is_reported_with_its_line_and_a_suggestion() {
    let error = layered("[gate]\nlisen = \"a\"\n", &[]).unwrap_err().to_string();
    for part in ["gate.toml", "line 2", "lisen", "did you mean `listen`?"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let error = layered("[gaet]\nlisten = \"a\"\n", &[]).unwrap_err().to_string();
    assert!(error.contains("did you mean `gate`?"), "{error}");
    let error = layered("[gate]\nlisten = 3\n", &[]).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("expected a string"), "{error}");
}

#[test]
fn an_error_about_the_file_does_not_quote_a_possible_password() {
    for (file, place) in [
        ("[redis]\nurl = \"redis://:s3cr3t@h", "line 2, column "),
        ("[redis]\nurl = redis://:s3cr3t@h\n", "line 2, column 7"),
        ("[redis]\nurl = \"redis://:s3cr3t@h\" x\n", "line 2, column "),
        ("[redis]\nurll = \"redis://:s3cr3t@h\"\n", "line 2, column 1"),
        ("redis = \"redis://:s3cr3t@h, expected \"\n", "line 1, column "),
        ("[redis]\nurl = [\"redis://:s3cr3t@h\"]\n", "line 2, column 7"),
        ("[redis]\nurl = 53637233\n", "line 2, column 7: invalid type: integer, expected a string"),
        ("[redis]\n'redis://:s3cr3t@h'\n", "line 2, column "),
    ] {
        let error = layered(file, &[]).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(place), "{text}");
        assert!(!text.contains("s3cr3t") && !text.contains("53637233"), "{text}");
    }
}

#[test]
fn variables_of_kubernetes_services_are_ignored() {
    let ours = [
        ("SHOP_GATE_SERVICE_HOST", "10.0.0.1"),
        ("SHOP_GATE_SERVICE_PORT", "80"),
        ("SHOP_GATE_SERVICE_PORT_HTTP", "80"),
        ("SHOP_GATE_PORT", "tcp://10.0.0.1:80"),
        ("SHOP_GATE_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("SHOP_GATE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("SHOP_REDIS_CACHE_PORT_6379_TCP_PROTO", "tcp"),
        ("SHOP_REDIS_CACHE_SERVICE_HOST", "10.0.0.2"),
        ("SHOP_GATE_LISTEN", "a"),
    ];
    assert_eq!(layered("", &ours).unwrap().get("gate.listen").unwrap().0.as_str(), Some("a"));
    for (name, value) in [("SHOP_GATE_PORT", "8080"), ("SHOP_GATE_PORTS", "1")] {
        let alone = layered("", &[(name, value)]).unwrap_err().to_string();
        assert!(alone.contains(name), "{alone}");
    }
    let beside = [ours[0], ("SHOP_GATE_LISEN", "a")];
    assert!(layered("", &beside).is_err(), "a typo is still an error");
}

#[test]
fn an_unknown_variable_is_reported_with_a_suggestion() {
    let error = layered("", &[("SHOP_GATE_LISEN", "a")]).unwrap_err().to_string();
    assert!(error.contains("SHOP_GATE_LISEN") && error.contains("`SHOP_GATE_LISTEN`"), "{error}");
    let error = layered("", &[("SHOP_ADMISSION_TOTAL", "many")]).unwrap_err().to_string();
    assert!(error.contains("SHOP_ADMISSION_TOTAL") && error.contains("u32"), "{error}");
    layered("", &[("SHOP_VENV", "x")]).expect("variables of other programs are ignored");
    let error = layered("", &[("SHOP_GTAE_LISTEN", "a")]).unwrap_err().to_string();
    assert!(error.contains("SHOP_GTAE_LISTEN") && error.contains("`SHOP_GATE_LISTEN`"), "{error}");
    layered("", &[("SHOP_SERVE_LISTEN", "x")]).expect("variables of other commands are ignored");
}
