//! Links between replicas that can be cut, and healed, while their clients go on.

use tailwater_env::{Env, Task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Carries bytes one way, while nothing is cut.
async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut cut: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let is_open = cut.wait_for(|cut| !*cut).await.is_ok();
        if !is_open || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Takes connections for the replica at `to`. Those of other replicas can be cut: their hello has the role 1.
pub async fn forward(env: Env, listener: TcpListener, to: String, cut: watch::Receiver<bool>) {
    let mut carried: Vec<Task> = Vec::new();
    while let Ok((mut near, _)) = listener.accept().await {
        let (to, mut cut) = (to.clone(), cut.clone());
        carried.push(env.spawn("carry", async move {
            let mut hello = [0; 8];
            let Ok(mut far) = TcpStream::connect(&to).await else { return };
            if near.read_exact(&mut hello).await.is_err() {
                return;
            }
            if hello[7] == 0 {
                cut = watch::channel(false).1;
            }
            let is_open = cut.wait_for(|cut| !*cut).await.is_ok();
            if !is_open || far.write_all(&hello).await.is_err() {
                return;
            }
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::join!(carry(near_in, far_out, cut.clone()), carry(far_in, near_out, cut));
        }));
    }
}
