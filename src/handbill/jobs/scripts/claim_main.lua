-- ARGV: prefix, packed claim options, packed `how`, '1' if again
return hb_claim(KEYS, ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1')
