"""What writer and reader compute alike: loops that plan packs and trees, and costs of segments."""
