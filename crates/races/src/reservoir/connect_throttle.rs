//! A server that accepts only so many connections per second: a connect_throttle in front of one that accepts any number.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval};

/// A connect_throttle that is open wide until it is narrowed. It is shut with the runtime.
pub(crate) struct ConnectThrottle {
    pub(crate) address: SocketAddr,
    narrow: Arc<AtomicBool>,
}

impl ConnectThrottle {
    /// From now on connections wait before it, in the order of coming.
    pub(crate) fn narrow(&self) {
        self.narrow.store(true, Ordering::Relaxed);
    }
}

/// Opens the connect_throttle, which lets in `per_second` connections once it is narrow.
pub(crate) async fn open(server: SocketAddr, per_second: f64) -> Result<ConnectThrottle> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, narrow) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
    let is_narrow = narrow.clone();
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Ok((mut client, _)) = listener.accept().await else { return };
            if is_narrow.load(Ordering::Relaxed) {
                ticks.tick().await;
            }
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(server).await else { return };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    Ok(ConnectThrottle { address, narrow })
}
