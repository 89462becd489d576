//! Hours of it: what is measured of the server meanwhile, and whether it stays as it is.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::plot::{Line, png};

/// A look at the server.
#[derive(Debug, Clone, Copy)]
struct Sample {
    pid: u32,
    anon_kib: u64,
    files: usize,
}

/// What was seen, second by second.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples(Arc<Mutex<Vec<Sample>>>);

impl Samples {
    /// Looks once a second at whoever is the server then.
    pub(crate) async fn watch(&self, pid: impl Fn() -> u32) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            // Between two servers there is none.
            if let Some(sample) = look(pid()) {
                self.0.lock().unwrap().push(sample);
            }
        }
    }

    /// Writes a picture, says what was seen, and fails unless it is flat.
    pub(crate) fn conclude(&self, folder: &Path) {
        let samples = self.0.lock().unwrap().clone();
        let last = samples.last().expect("somebody looked").pid;
        let steady: Vec<_> = samples.iter().filter(|sample| sample.pid == last).copied().collect();
        assert!(
            steady.len() >= 20,
            "the last server lived for {} s only: too short to say anything",
            steady.len()
        );
        let line =
            |colour, value: fn(&Sample) -> f64| Line { colour, values: samples.iter().map(value).collect() };
        let lines = [
            line([35, 90, 200], |sample| sample.anon_kib as f64),
            line([220, 120, 30], |sample| sample.files as f64),
        ];
        let ends =
            (1..samples.len()).filter(|at| samples[*at].pid != samples[at - 1].pid).collect::<Vec<_>>();
        fs::create_dir_all(folder).unwrap();
        let picture = folder.join("soak.png");
        fs::write(&picture, png(&lines, &ends)).unwrap();
        // The first quarter fills caches, tables and the allocator's arenas.
        let quarter = steady.len() / 4;
        let (early, late) = (&steady[quarter..2 * quarter], &steady[3 * quarter..]);
        let memory = |samples: &[Sample]| median(samples.iter().map(|sample| sample.anon_kib).collect());
        let files = |samples: &[Sample]| median(samples.iter().map(|sample| sample.files as u64).collect());
        let (memory, files) = ([memory(early), memory(late)], [files(early), files(late)]);
        eprintln!(
            "memory {} -> {} KiB, file descriptors {} -> {} (medians of the second and the last quarter of {} s); {} servers; \
             blue is memory, orange descriptors: {}",
            memory[0],
            memory[1],
            files[0],
            files[1],
            steady.len(),
            ends.len() + 1,
            picture.display(),
        );
        assert!(memory[1] <= memory[0] + memory[0] / 4 + 8 * 1024, "memory grows: {memory:?} KiB");
        assert!(files[1] <= files[0] + files[0] / 4 + 50, "descriptors grow: {files:?}");
    }
}

fn look(pid: u32) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let anon = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let anon_kib = anon.trim().trim_end_matches(" kB").parse().ok()?;
    Some(Sample { pid, anon_kib, files: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() })
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
