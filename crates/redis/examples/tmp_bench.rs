#![allow(missing_docs, clippy::all, clippy::print_stdout, clippy::unwrap_used)]
use forebay_redis::{Client, cmd};
use std::time::Instant;
fn cpu() -> f64 { let s = std::fs::read_to_string("/proc/self/stat").unwrap(); let f: Vec<&str> = s.rsplit(") ").next().unwrap().split(' ').collect(); (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0 }
async fn run(tasks: usize, total: usize, pipeline: bool, url: &str) {
    let client = Client::connect(url).await.unwrap();
    client.exec::<()>(("SET", "key", "x".repeat(100))).await.unwrap();
    for round in 0..3 {
        let (t, c) = (Instant::now(), cpu());
        let mut set = Vec::new();
        for _ in 0..tasks {
            let client = client.clone();
            set.push(tokio::spawn(async move {
                if pipeline {
                    let cmds: Vec<_> = (0..100).map(|_| cmd("GET").arg("key")).collect();
                    for _ in 0..total / tasks / 100 { let r = client.pipeline::<Vec<String>>(&cmds).await.unwrap(); assert!(r.len() == 100 && r[0].as_ref().unwrap().len() == 100); }
                } else {
                    for _ in 0..total / tasks { let v: String = client.exec(("GET", "key")).await.unwrap(); assert_eq!(v.len(), 100); }
                }
            }));
        }
        for t in set { t.await.unwrap(); }
        let e = t.elapsed().as_secs_f64();
        if round == 2 { println!("tasks={tasks} pipeline={pipeline}: {:.0} ops/s, {:.0} ns cpu/op", total as f64 / e, (cpu() - c) * 1e9 / total as f64); }
    }
}
fn main() {
    let url = std::env::args().nth(1).unwrap();
    for mt in [false, true] {
        let rt = if mt { tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap() } else { tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap() };
        println!("mt={mt}");
        let u = url.clone();
        rt.block_on(async move {
            run(1, 50_000, false, &u).await;
            run(64, 1_000_000, false, &u).await;
            run(1000, 1_000_000, false, &u).await;
            run(4, 2_000_000, true, &u).await;
        });
    }
}
