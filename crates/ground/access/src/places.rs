//! How many of something each address may have at the same time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::network;

/// Places that are taken, by the address that has them; [`network`] says what counts as one. Addresses that have none
/// are not remembered.
#[derive(Clone, Debug, Default)]
pub struct PlacesByAddress(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One of an address's places, until it is dropped.
#[derive(Debug)]
pub struct AddressPlace {
    places: PlacesByAddress,
    network: IpAddr,
}

impl PlacesByAddress {
    /// One more place, unless the address has `most`.
    pub fn take(&self, address: IpAddr, most: usize) -> Option<AddressPlace> {
        let network = network(address);
        let mut taken = self.0.lock();
        let count = taken.get(&network).copied().unwrap_or_default();
        (count < most).then(|| {
            taken.insert(network, count + 1);
            AddressPlace { places: self.clone(), network }
        })
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        if let Some(count) = taken.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn places_of_an_address_are_bounded_until_one_is_given_back_and_others_have_their_own() {
        let places = PlacesByAddress::default();
        let mut taken: Vec<_> = (0..3).map(|_| places.take(address(1), 3).expect("room")).collect();
        assert!(places.take(address(1), 3).is_none());
        assert!(places.take(address(2), 3).is_some());
        taken.pop();
        assert!(places.take(address(1), 3).is_some());
        taken.clear();
        assert!(places.0.lock().is_empty());
    }
}
